"""Watches a running service: what changed against its own measurement, and why."""
