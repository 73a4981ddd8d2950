"""What share of the prompts a server had in its prefix cache, in each of two runs: a warm cache beside a cold one makes
every first token faster, whatever else was changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from loadgen.saved_run import SavedRequest

CLEAR_DIFFERENCE = 0.05
"""Of all prompt tokens. Which requests find their prefix still there changes a little from run to run."""


@dataclasses.dataclass(frozen=True, slots=True)
class CachedShare:
    """Of one class, or of all."""

    slo_class: str
    num_first: int
    num_second: int
    """Requests whose prompt tokens are known."""
    first: float
    second: float
    """Cached prompt tokens over prompt tokens."""

    @property
    def change(self) -> float:
        return self.second - self.first

    @property
    def differs(self) -> bool:
        """Clearly: by more than `CLEAR_DIFFERENCE`."""
        return abs(self.change) > CLEAR_DIFFERENCE


def cached_share(name: str, first: Sequence[SavedRequest], second: Sequence[SavedRequest]) -> CachedShare | None:
    """Of the requests of a class in either run; None: one of them has none whose prompt tokens are known."""
    known = [[request for request in side if request.num_prompt_tokens] for side in (first, second)]
    if not all(known):
        return None
    shares = [
        sum(request.num_cached_tokens for request in side) / sum(request.num_prompt_tokens for request in side)
        for side in known
    ]
    return CachedShare(name, len(known[0]), len(known[1]), *shares)
