"""The one error of traces."""

from __future__ import annotations


class TraceError(Exception):
    """A trace cannot be read, imported or written; the message says what to do about it."""
