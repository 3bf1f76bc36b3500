"""GGUF files made smaller by llama.cpp's quantiser, with an importance matrix and a proof."""
