"""Servers as formulas: how many requests of a probe they meet at a rate, for searches whose answer is known."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping

from loadgen.probe import ClassCount, Look


@dataclasses.dataclass
class CoinServer:
    """Meets each request with a probability that depends on the rate, by class."""

    probabilities: Mapping[str, Callable[[float], float]]
    num_requests: int
    seed: int
    client_limit_per_s: float = math.inf
    """From there on the client is too slow."""
    interrupt_after: int | None = None
    asked: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    async def __call__(self, rate_per_s: float, look: int) -> Look:
        self.asked.append((rate_per_s, look))
        counts = {}
        for name, probability in self.probabilities.items():
            # Common random numbers: request n meets its target at every rate that its own luck allows.
            rng = random.Random(f"{self.seed}/{look}/{name}")
            luck = [rng.random() for _ in range(self.num_requests)]
            counts[name] = ClassCount(sum(each < probability(rate_per_s) for each in luck), self.num_requests)
        too_fast = rate_per_s >= self.client_limit_per_s
        return Look(
            counts=counts,
            seed=look,
            duration_s=self.num_requests / rate_per_s,
            invalid_reasons=("requests left late",) if too_fast else (),
            is_client_limit=too_fast,
            interrupted=self.interrupt_after is not None and len(self.asked) > self.interrupt_after,
        )


@dataclasses.dataclass(frozen=True)
class FluidServer:
    """One request every `service_s`, in order; a request is met where it waits `patience_s` at most.

    Requests come at equal gaps. Request i of n, from 0, waits i (service_s - 1 / rate) where that is above 0; so the
    rate at which exactly k requests are met is 1 / (service_s - patience_s / (k - 1)).
    """

    service_s: float
    patience_s: float
    num_requests: int

    async def __call__(self, rate_per_s: float, look: int) -> Look:
        waited_s, met = 0.0, 0
        for _ in range(self.num_requests):
            met += waited_s <= self.patience_s
            waited_s = max(waited_s + self.service_s - 1.0 / rate_per_s, 0.0)
        return Look({"a": ClassCount(met, self.num_requests)}, look, self.num_requests / rate_per_s)

    def capacity_per_s(self, objective: float) -> float:
        num_met = math.ceil(objective * self.num_requests)
        return 1.0 / (self.service_s - self.patience_s / (num_met - 1))


def misses_grow(capacity_per_s: float, objective: float, power: float = 3.0) -> Callable[[float], float]:
    """A probability that is `objective` at `capacity_per_s` and falls with the rate."""
    return lambda rate: max(1.0 - (1.0 - objective) * (rate / capacity_per_s) ** power, 0.0)
