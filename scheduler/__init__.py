"""Decisions: which request computes how many tokens in a step, and which blocks it holds. Pure Python."""
