"""How long answers are, by class, from those that ended: what the memory of running requests may still grow by.

Source: Past-Future scheduler (Gong et al., ASPLOS 2025). Nothing is known of the answer that a request will get: its
length is read when it has ended.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterable

WINDOW = 256
"""Answers of a class that are remembered."""
MIN_ANSWERS = 16
"""Fewer than these say nothing; until then `PRIOR_TOKENS` stands."""
PRIOR_TOKENS = 512
QUANTILE = 0.9
OVERRUN = 0.5
"""An answer longer than any before is taken to be this share of itself longer still."""
MIN_OVERRUN_TOKENS = 16


class OutputLengths:
    """Owns the recent lengths of each class. Deterministic in what it observes."""

    def __init__(self, class_names: Iterable[str]) -> None:
        self._recent: dict[str, deque[int]] = {name: deque() for name in class_names}
        self._ordered: dict[str, list[int]] = {name: [] for name in self._recent}

    def observe(self, class_name: str, num_tokens: int) -> None:
        """An answer of that length ended by itself."""
        recent, ordered = self._recent[class_name], self._ordered[class_name]
        if len(recent) == WINDOW:
            del ordered[bisect.bisect_left(ordered, recent.popleft())]
        recent.append(num_tokens)
        bisect.insort(ordered, num_tokens)

    def remaining(self, class_name: str, num_tokens: int, max_tokens: int) -> int:
        """Tokens to come at the 90th percentile of the answers that were longer; at most what is left of `max_tokens`.

        Args:
            num_tokens: that are out.
        """
        left = max_tokens - num_tokens
        ordered = self._ordered[class_name]
        if len(ordered) < MIN_ANSWERS:
            return min(left, max(PRIOR_TOKENS - num_tokens, _overrun(num_tokens)))
        first = bisect.bisect_right(ordered, num_tokens)
        num_longer = len(ordered) - first
        if not num_longer:
            return min(left, _overrun(num_tokens))
        return min(left, ordered[first + math.ceil(QUANTILE * num_longer) - 1] - num_tokens)

    def check(self) -> None:
        """Assert that both orders hold the same lengths."""
        for name, recent in self._recent.items():
            assert sorted(recent) == self._ordered[name] and len(recent) <= WINDOW


def _overrun(num_tokens: int) -> int:
    return max(int(num_tokens * OVERRUN), MIN_OVERRUN_TOKENS)


def future_peak_blocks(growing: Iterable[tuple[int, int]], block_size: int) -> int:
    """The most blocks that sequences hold at one time, if all grow by a token a step until each ends.

    The peak is where one of them ends: those that last as long have grown by as much.

    Args:
        growing: of each, the tokens to come and the blocks that it holds.
    """
    peak = held = 0
    for count, (remaining, num_blocks) in enumerate(sorted(growing, reverse=True), 1):
        held += num_blocks
        peak = max(peak, held + count * -(-remaining // block_size))
    return peak
