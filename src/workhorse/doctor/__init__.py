"""What the facts of a machine mean: rules from knowledge to findings. Pure."""
