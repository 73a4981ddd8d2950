"""Root of what this folder raises; the subclasses are in the files of their nouns."""

from __future__ import annotations


class OffloadError(RuntimeError):
    """Memory or a transfer failed; the message names the value, the limit and the way out."""
