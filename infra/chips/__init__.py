"""Accelerator chips, how they are joined, and the cost of programs compiled for them."""
