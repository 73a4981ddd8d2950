"""A call that is known to threads before it is known whom it reaches."""

from __future__ import annotations

from collections.abc import Callable


class ResultBell:
    """Threads that move blocks ring it; the loop that waits for them says later how it is woken."""

    def __init__(self) -> None:
        self._wake: Callable[[], None] | None = None

    def call(self, wake: Callable[[], None] | None) -> None:
        """Whom `ring` calls from now on; None: nobody."""
        self._wake = wake

    def ring(self) -> None:
        """From any thread."""
        wake = self._wake
        if wake is not None:
            wake()
