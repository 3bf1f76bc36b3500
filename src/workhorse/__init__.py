"""workhorse puts an idle old server back to work as a private LLM service."""

__version__ = "0.1.0"
