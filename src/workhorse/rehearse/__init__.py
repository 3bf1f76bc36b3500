"""Exact memory and true speed before the download: skeletons and twins of a model."""
