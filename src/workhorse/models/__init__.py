"""Find and read model files."""
