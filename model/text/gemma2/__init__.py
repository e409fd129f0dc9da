"""Gemma 2: the decoder of PaliGemma 2."""
