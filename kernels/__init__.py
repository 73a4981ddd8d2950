"""Arithmetic: the operations of a decoder, each with a plain PyTorch definition."""
