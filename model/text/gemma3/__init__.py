"""Gemma 3, its decoder of text alone."""
