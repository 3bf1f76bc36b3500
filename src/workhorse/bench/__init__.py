"""Measure a service: load, raw times, honest statistics."""
