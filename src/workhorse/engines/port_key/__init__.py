"""The one folder that vLLM's own Python sees of ours."""
