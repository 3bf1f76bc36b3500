"""LMDeploy with its TurboMind engine, and the trap that it falls back from it. Pure."""
