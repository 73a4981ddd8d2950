"""When the tokens of one request are due, and which of them were late.

Source: deadlines under the strict anchor, the actual first token, of Niyama (Goel et al., 2025) and Etalon (Agrawal et
al., 2024), with a cap on the stall between two tokens.
"""

from __future__ import annotations

MAX_MISSES = 2
"""Late tokens after which a request no longer bounds a step: its promise is broken, that of others is not."""


class TokenDeadlines:
    """Of one request. D_0 = first_s - egress_s; D_k = min(anchor + k * tpot_s, last token + max_stall_s) - egress_s.

    The anchor is the first token as it came out. A late token moves it, so that the request is due one `tpot_s` later
    and asks for no more than any other. A token counts as one miss at most, however often it was put off.
    """

    __slots__ = (
        "_anchor_s", "_egress_s", "_is_missed", "_max_stall_s", "_num_emitted", "is_lost", "next_s", "num_misses",
        "tpot_s",
    )  # fmt: skip

    def __init__(self, first_s: float, tpot_s: float, max_stall_s: float | None, egress_s: float) -> None:
        """
        Args:
            first_s: arrival + TTFT target: when the client is to have the first token, on the scheduler's clock.
            egress_s: taken off every deadline: from the end of a step to the client.

        Raises:
            ValueError: a target is not above 0, or the egress is negative.
        """
        for name, value in (("tpot_s", tpot_s), ("max_stall_s", max_stall_s)):
            if value is not None and not value > 0.0:
                raise ValueError(f"{name} is {value}, it must be above 0")
        if not egress_s >= 0.0:
            raise ValueError(f"egress_s is {egress_s}, it must be at least 0")
        self.tpot_s = tpot_s
        self._max_stall_s = max_stall_s
        self._egress_s = egress_s
        self._anchor_s: float | None = None
        self._num_emitted = 0
        self._is_missed = False
        """The token to come was put off already: it is a miss whenever it comes."""
        self.next_s = first_s - egress_s
        """When a step must have sampled the next token."""
        self.num_misses = 0
        self.is_lost = False
        """More than `MAX_MISSES` tokens were late."""

    def start(self, first_s: float) -> None:
        """At the first start the cached tokens are known, and with them the TTFT target in force."""
        assert self._anchor_s is None, "the first token is out"
        self.next_s = first_s - self._egress_s

    def emitted(self, now_s: float) -> None:
        """The next token is out."""
        is_late = now_s > self.next_s
        if is_late:
            self._miss()
        k = self._num_emitted
        if self._anchor_s is None:
            self._anchor_s = now_s
        elif is_late or self._is_missed:
            self._anchor_s = max(self._anchor_s, now_s - k * self.tpot_s)
        self._num_emitted = k + 1
        self._is_missed = False
        due_s = self._anchor_s + (k + 1) * self.tpot_s
        if self._max_stall_s is not None:
            due_s = min(due_s, now_s + self._max_stall_s)
        self.next_s = due_s - self._egress_s

    def rebase(self, earliest_s: float) -> None:
        """The next token cannot be out before `earliest_s`: a miss, and due then. Never earlier than it was due."""
        if earliest_s > self.next_s:
            self._miss()
            self.next_s = earliest_s

    def check(self) -> None:
        """Assert that the counts fit each other."""
        assert 0 <= self.num_misses <= self._num_emitted + self._is_missed
        assert self.is_lost == (self.num_misses > MAX_MISSES)
        assert (self._anchor_s is None) == (self._num_emitted == 0)

    def _miss(self) -> None:
        if not self._is_missed:
            self._is_missed = True
            self.num_misses += 1
            self.is_lost = self.num_misses > MAX_MISSES
