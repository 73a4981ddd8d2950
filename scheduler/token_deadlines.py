"""When the tokens of one request are due, and which of them were late.

Source: a deadline for each token is that of Etalon (Agrawal et al., 2024) and FairBatching (arXiv 2510.14392), which
anchor it at the arrival; here it hangs on the actual first token, as TPOT does, and a cap bounds the stall.
"""

from __future__ import annotations

MAX_MISSES = 2
"""Late tokens, without having caught up in between, after which a request no longer bounds a step."""


class TokenDeadlines:
    """Of one request: D_0 = first_s - egress_s, D_k = min(anchor + k * tpot_s, last token + max_stall_s) - egress_s.

    The anchor is the first token as it came out. A late token moves the anchor, so that the next one is due one
    `tpot_s` later and the request asks for no more than any other. What it then gains on its deadlines moves the anchor
    back, as far as the first one: TPOT is judged from there. Before the egress, a token is due no sooner after the one
    before it than the smaller of `tpot_s` and `max_stall_s`.
    """

    __slots__ = (
        "_anchor_s",
        "_egress_s",
        "_first_anchor_s",
        "_is_missed",
        "_max_stall_s",
        "_num_behind",
        "_num_emitted",
        "is_lost",
        "next_s",
        "num_misses",
        "tpot_s",
    )

    def __init__(self, first_s: float, tpot_s: float, max_stall_s: float | None, egress_s: float) -> None:
        """
        Args:
            first_s: arrival + TTFT target: when the client is to have the first token.
            max_stall_s: between two tokens; None: no limit.
            egress_s: from the end of a step to the client; taken off every deadline.

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
        self._first_anchor_s = self._anchor_s = 0.0
        self._num_emitted = 0
        self._num_behind = 0
        """Late tokens since the request was last on its first line."""
        self._is_missed = False
        """The next token was put off already: it is a miss whenever it comes."""
        self.next_s = first_s - egress_s
        """When a step must have sampled the next token."""
        self.num_misses = 0
        """Tokens that were late or put off; each counts once."""
        self.is_lost = False
        """Too far behind to be saved; not any more once it has caught up."""

    def start(self, first_s: float) -> None:
        """At the first start the cached tokens are known, and with them the TTFT target in force."""
        assert self._num_emitted == 0, "the first token is out"
        self.next_s = first_s - self._egress_s

    def emitted(self, now_s: float) -> None:
        """The next token is out."""
        if now_s > self.next_s:
            self._miss()
        k = self._num_emitted
        if k == 0:
            self._first_anchor_s = self._anchor_s = now_s
        elif self._is_missed or self._anchor_s > self._first_anchor_s:
            self._anchor_s = max(self._first_anchor_s, now_s - k * self.tpot_s)
        if self._num_behind and not self._is_missed and self._anchor_s == self._first_anchor_s:
            self._num_behind = 0
            self.is_lost = False
        self._is_missed = False
        self._num_emitted = k + 1
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
        assert 0 <= self._num_behind <= self.num_misses <= self._num_emitted + self._is_missed
        assert self.is_lost == (self._num_behind > MAX_MISSES)
        assert self._anchor_s >= self._first_anchor_s

    def _miss(self) -> None:
        if not self._is_missed:
            self._is_missed = True
            self.num_misses += 1
            self._num_behind += 1
            self.is_lost = self._num_behind > MAX_MISSES
