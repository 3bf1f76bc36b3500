"""Finds the passages of documents that a question is about."""
