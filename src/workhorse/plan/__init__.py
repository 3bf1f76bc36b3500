"""Decide: memory, speed and placement of a model on a machine. Pure."""
