"""How fast prompts are worked off while more of them wait than fit."""

from __future__ import annotations

DECAY = 0.98
"""Weight of the past per step with a backlog: about 50 steps count."""


class PrefillPace:
    """Owns the pace that was seen. What counts is all time with a backlog, steps without prefill included."""

    def __init__(self, prior_s_per_token: float | None) -> None:
        """
        Args:
            prior_s_per_token: until something was seen; None: nothing is known.
        """
        self._tokens = 0.0
        self._seconds = 0.0
        self._prior_s_per_token = prior_s_per_token

    @property
    def s_per_token(self) -> float | None:
        """Seconds of steps per token of a prompt, decodes beside it included; None: nothing is known."""
        seen_s = self.seen_s_per_token
        return self._prior_s_per_token if seen_s is None else seen_s

    @property
    def seen_s_per_token(self) -> float | None:
        """The same, of what was seen alone; None: nothing was."""
        return self._seconds / self._tokens if self._tokens >= 1.0 else None

    def observe(self, duration_s: float, num_prefill_tokens: int) -> None:
        """A step took so long, and prompts were left over that could have been computed."""
        if duration_s <= 0.0:
            return
        self._seconds = self._seconds * DECAY + duration_s
        self._tokens = self._tokens * DECAY + num_prefill_tokens

    def check(self) -> None:
        """Assert what must hold between two calls."""
        assert self._tokens >= 0.0 and self._seconds >= 0.0
