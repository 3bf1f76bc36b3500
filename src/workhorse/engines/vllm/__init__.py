"""vLLM: started from its own environment, understood by its log. Pure."""
