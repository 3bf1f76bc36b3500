"""Comments put into source code, the code itself byte for byte as it was."""
