"""Deterministic generators of the default model's training text and of its evaluation items."""
