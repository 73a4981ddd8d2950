"""Weights as integers with scales, as GGUF files store them, and the products with them."""
