"""The latency targets a request is judged by, and where they come from.

Value by value: what `--slo`, or the class's own option, says; else what the server told in the response's `x-slo-*`
headers, where it granted the class asked for; else the class's targets at `GET /v1/slo`, for the uncached part of the
prompt. A server that tells nothing leaves a request unjudged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from loadgen.class_option import split_option
from loadgen.config import BenchError

_KEYS = ("ttft_ms", "tpot_ms", "max_stall_ms", "e2e_ms")


@dataclasses.dataclass(frozen=True, slots=True)
class Targets:
    """Limits in seconds; None: not judged."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    max_stall_s: float | None = None
    e2e_s: float | None = None

    @property
    def judges(self) -> bool:
        return any(value is not None for value in dataclasses.astuple(self))

    def or_else(self, other: Targets) -> Targets:
        """Own values, and the other's where there is none."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Targets(*(mine if mine is not None else theirs for mine, theirs in pairs))


@dataclasses.dataclass(frozen=True, slots=True)
class ClassTargets:
    """A class's targets as `GET /v1/slo` tells them, in seconds; None: not told or not judged."""

    ttft_base_s: float | None
    ttft_per_1k_tokens_s: float
    tpot_s: float | None
    max_stall_s: float | None

    def for_prompt(self, num_uncached_tokens: int) -> Targets:
        ttft_s = self.ttft_base_s
        if ttft_s is not None:
            ttft_s += self.ttft_per_1k_tokens_s * num_uncached_tokens / 1000.0
        return Targets(ttft_s, self.tpot_s, self.max_stall_s)


@dataclasses.dataclass(frozen=True, slots=True)
class ToldTargets:
    """What a response's headers promise."""

    granted: str | None
    targets: Targets


def read_told_targets(headers: Mapping[str, str]) -> ToldTargets:
    """The promise in a response's headers (looked up by lower-case names); what is absent or unreadable is None."""
    return ToldTargets(
        headers.get("x-slo-granted") or headers.get("x-slo-class"),
        Targets(
            _seconds(headers.get("x-slo-ttft-target-ms")),
            _seconds(headers.get("x-slo-tpot-target-ms")),
            _seconds(headers.get("x-slo-max-stall-ms")),
        ),
    )


def parse_overrides(
    options: tuple[str, ...], names: tuple[str, ...], of_classes: Mapping[str, Targets] | None = None
) -> dict[str, Targets]:
    """The targets that `--slo` sets, by class, on top of those that the options of the classes set.

    Raises:
        BenchError: an option cannot be read, or names a class that the run does not send.
    """
    overrides: dict[str, Targets] = {}
    for text in options:
        name, pairs = split_option(text, "--slo")
        if name not in names:
            raise BenchError(f"--slo {text!r}: class {name!r} is not sent: the run's classes are {', '.join(names)}")
        unknown = sorted(set(pairs) - set(_KEYS))
        if unknown or not pairs:
            raise BenchError(f"--slo {text!r}: write NAME:KEY=MILLISECONDS with some of {', '.join(_KEYS)}")
        if name in overrides:
            raise BenchError(f"--slo gives class {name!r} twice")
        overrides[name] = Targets(*(_parse_ms(text, key, pairs[key]) if key in pairs else None for key in _KEYS))
    for name, targets in (of_classes or {}).items():
        overrides[name] = overrides.get(name, Targets()).or_else(targets)
    return overrides


class TargetBook:
    """All that is known of the targets, before a response adds its own headers."""

    def __init__(self, overrides: Mapping[str, Targets], served: Mapping[str, ClassTargets]) -> None:
        self._overrides = dict(overrides)
        self._served = dict(served)

    def targets_for(self, slo_class: str, num_uncached_tokens: int, told: ToldTargets | None) -> Targets:
        """What a request of `slo_class` is judged by."""
        targets = self._overrides.get(slo_class, Targets())
        if told is not None and told.granted in (None, slo_class):
            targets = targets.or_else(told.targets)
        served = self._served.get(slo_class)
        return targets if served is None else targets.or_else(served.for_prompt(num_uncached_tokens))

    @property
    def own_names(self) -> frozenset[str]:
        """Classes with targets that the options set."""
        return frozenset(self._overrides)

    def tightest_ttft_s(self, names: tuple[str, ...]) -> float | None:
        """The shortest TTFT target of the classes, for an empty prompt; None: none is known."""
        targets = [self.targets_for(name, 0, None).ttft_s for name in names]
        return min((target for target in targets if target is not None), default=None)


def _seconds(text: str | None) -> float | None:
    try:
        value_ms = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value_ms / 1000.0 if math.isfinite(value_ms) and value_ms > 0.0 else None


def _parse_ms(text: str, key: str, value: str) -> float:
    seconds = _seconds(value)
    if seconds is None:
        raise BenchError(f"--slo {text!r}: {key} is {value!r}, it must be a number of milliseconds above 0")
    return seconds
