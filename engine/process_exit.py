"""Exit statuses of an engine process."""

from __future__ import annotations

EXIT_STOPPED = 0
EXIT_FATAL = 3
"""A `Fatal` message was sent."""
