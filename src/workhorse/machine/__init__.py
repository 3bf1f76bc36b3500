"""Read the host: CPUs, memory, GPUs, limits."""
