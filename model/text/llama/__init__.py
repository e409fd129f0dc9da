"""Llama 2 and 3, and what is tuned from them, such as Vicuna."""
