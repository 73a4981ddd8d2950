"""When the requests of an open loop are due."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal


def arrival_offsets_s(
    kind: Literal["poisson", "constant", "gamma"], rate_per_s: float, rng: random.Random, cv: float = 1.0
) -> Iterator[float]:
    """Seconds from the start of the run at which each request is due, without end, in ascending order.

    `poisson` draws exponential gaps, as independent users make them; the first gap counts, so that a run of
    `--duration` sees as many arrivals as the rate says. `constant` sends one at 0 and then one each 1 / rate.
    `gamma` draws gaps of the same mean whose standard deviation is `cv` times it: bursts where `cv` is above 1.
    """
    if kind == "constant":
        yield from (index / rate_per_s for index in itertools.count())
    shape = cv**-2
    offset_s = 0.0
    while True:
        offset_s += (
            rng.gammavariate(shape, 1.0 / (shape * rate_per_s)) if kind == "gamma" else rng.expovariate(rate_per_s)
        )
        yield offset_s
