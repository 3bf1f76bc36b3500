"""Supply of engine builds: made here or brought here, checked, several side by side."""
