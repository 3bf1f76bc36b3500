"""Turns a BF16 checkpoint into an FP16 one, for cards that cannot compute with BF16."""
