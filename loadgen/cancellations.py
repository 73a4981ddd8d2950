"""Clients that leave before their answer has ended."""

from __future__ import annotations

import random


class Cancellations:
    """Which requests are left, and when; the same for the same seed."""

    def __init__(self, share: float, seed: int) -> None:
        self._share = share
        self._seed = seed

    def draw(self, number: int | str, num_output_tokens: int) -> int | None:
        """Tokens after which the client of request `number` leaves, evenly among those that leave some of the answer
        unread; None: it stays. An answer of one token is not left."""
        if self._share == 0.0 or num_output_tokens < 2:
            return None
        rng = random.Random(f"{self._seed}/cancel/{number}")
        return rng.randint(1, num_output_tokens - 1) if rng.random() < self._share else None
