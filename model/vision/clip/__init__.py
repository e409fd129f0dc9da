"""CLIP's image tower, as LLaVA reads it."""
