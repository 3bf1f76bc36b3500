"""Checkpoints of Hugging Face's form as GGUF files, by llama.cpp's own converter."""
