"""Prompt templates: how questions, images and answers stand in a row of tokens."""
