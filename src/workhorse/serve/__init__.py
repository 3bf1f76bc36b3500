"""The gateway: an OpenAI-compatible API that frees the engine when a client leaves."""
