"""Thousands of documents through a running service, none lost and none done twice."""
