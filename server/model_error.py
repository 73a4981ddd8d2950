"""What can go wrong between a model's name and its files."""

from __future__ import annotations


class ModelError(Exception):
    """The model cannot be had. The message is for the user: what was tried, and the way out."""


class ModelNotCachedError(ModelError):
    """The model is known and its files are not on this machine (or damaged); `pull` fetches them."""


class FetchError(ModelError):
    """One source did not deliver; another may."""
