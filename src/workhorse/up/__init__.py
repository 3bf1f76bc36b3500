"""The main job, and the parts of it that other verbs use alone."""
