"""The load test of one probe: the options of the search with their rates scaled, and a length that fits the rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from loadgen.capacity_config import CapacityConfig
from loadgen.class_mix import ClassMix
from loadgen.config import BenchConfig, BenchError

DEFAULT_REQUESTS = 200
DEFAULT_DURATION_S = 30.0
"""Least length of a run, where the options do not say."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayedRows:
    """What a search needs to know of its trace."""

    num_rows: int
    rate_per_s: float | None
    """None: its rows are all of one moment."""


class OfferedLoad:
    """Load tests by rate. The same look at two rates has the same plan, with its time scaled.

    Arrivals at another rate are those of a unit rate divided by it, and longer runs go on where shorter ones end. So
    the n-th request is of the same class and lengths at every rate of a mix.
    """

    def __init__(
        self, config: BenchConfig, search: CapacityConfig, mix: ClassMix, varied: str | None, rows: ReplayedRows | None
    ) -> None:
        """
        Args:
            mix: that `config` describes.
            varied: class whose rate is searched; None: all rates are, in proportion.
            rows: of the trace; None: there is none.

        Raises:
            BenchError: the options leave open what is varied, or what the other classes do.
        """
        self._config = config
        self._search = search
        self._mix = mix
        self._varied = varied
        self._rows = rows
        self._base = _base_rates(config, mix) if rows is None else {}
        if not config.is_open_loop:
            raise BenchError("a capacity is a rate of an open loop: leave out --concurrency")
        if varied is not None:
            self._check_varied(varied)

    @property
    def start_rate_per_s(self) -> float:
        """Of the first probe."""
        if self._varied is not None:
            return self._base[self._varied]
        if self._rows is not None:
            return self._config.rate or self._rows.rate_per_s or 1.0
        return sum(self._base.values())

    @property
    def can_prolong(self) -> bool:
        """Whether another seed is another load. A trace is one load: to send it again tells nothing new."""
        return self._rows is None

    def class_rates(self, rate_per_s: float) -> dict[str, float]:
        """Requests per second of each class while the search is at `rate_per_s`; empty for a trace."""
        if self._varied is not None:
            return {**self._base, self._varied: rate_per_s}
        return {name: base * rate_per_s / sum(self._base.values()) for name, base in self._base.items()}

    def at(self, rate_per_s: float, look: int, run: int, judged: Mapping[str, float]) -> BenchConfig:
        """The load test of look `look` at a rate.

        Args:
            run: number of the load test in the search: its prompts differ from those of all others, else the server's
                prefix cache would make each probe faster than the one before it.
            judged: of these classes enough requests must be sent.
        """
        rates = self.class_rates(rate_per_s)
        length_s = self._length_s(rate_per_s, rates, judged)
        requests = self._config.requests
        if self._rows is None:
            requests = max(math.ceil(sum(rates.values()) * length_s), 1)
        return dataclasses.replace(
            self._config,
            rate=self._free_rate(rate_per_s, rates),
            classes=tuple(self._scaled(text, rates) for text in self._config.classes),
            requests=requests,
            duration_s=None,
            warm_up_s=self._search.warm_up_share * length_s,
            cool_down_s=self._search.cool_down_share * length_s,
            seed=self._config.seed + look,
            prompt_salt=self._config.prompt_salt + run,
            json_path=None,
            html_path=None,
            requests_path=None,
            save_requests=False,
            scrape=False,
        )

    def _length_s(self, rate_per_s: float, rates: Mapping[str, float], judged: Mapping[str, float]) -> float:
        if self._rows is not None:
            return min(self._config.requests or self._rows.num_rows, self._rows.num_rows) / rate_per_s
        counted = 1.0 - self._search.warm_up_share - self._search.cool_down_share
        least_s = DEFAULT_DURATION_S if self._config.duration_s is None else self._config.duration_s
        number = DEFAULT_REQUESTS if self._config.requests is None else self._config.requests
        return max([least_s, *(number / rates[name] for name in judged if name in rates)]) / counted

    def _free_rate(self, rate_per_s: float, rates: Mapping[str, float]) -> float | None:
        """Of all classes without a rate of their own, which divide it by their shares."""
        if self._rows is not None:
            return rate_per_s
        free = [c.name for c in self._mix.classes if c.rate_per_s is None and c.name != self._varied]
        return sum(rates[name] for name in free) if free else None

    def _scaled(self, text: str, rates: Mapping[str, float]) -> str:
        """The option of a class with its rate put in, where it has one of its own."""
        name, _, rest = text.partition(":")
        slo_class = self._mix.find(name.strip()) if self._rows is None else None
        if slo_class is None or (slo_class.rate_per_s is None and slo_class.name != self._varied):
            return text
        parts = [part for part in rest.split(",") if part.strip() and part.partition("=")[0].strip() != "rate"]
        return f"{name}:{','.join([*parts, f'rate={rates[slo_class.name]!r}'])}"

    def _check_varied(self, varied: str) -> None:
        if self._rows is not None:
            raise BenchError("--vary and --frontier need classes with rates; a trace has one: leave out --trace")
        if varied not in self._mix.names:
            raise BenchError(f"class {varied!r} is not sent: the load's classes are {', '.join(self._mix.names)}")
        free = [c.name for c in self._mix.classes if c.rate_per_s is None and c.name != varied]
        if free and self._config.rate is None:
            raise BenchError(
                f"which rate does {free[0]!r} keep while that of {varied!r} is searched? "
                f"Write --class {free[0]}:rate=..., or --rate"
            )


def _base_rates(config: BenchConfig, mix: ClassMix) -> dict[str, float]:
    """Requests per second of each class as the options give them."""
    shares = sum(c.share for c in mix.classes if c.rate_per_s is None)
    return {c.name: config.rate_per_s * c.share / shares if c.rate_per_s is None else c.rate_per_s for c in mix.classes}
