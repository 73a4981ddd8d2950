"""Which latency classes a load test mixes, in which shares, with prompts and outputs of which lengths."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping
from typing import Literal, cast, get_args

from loadgen.class_option import parse_above_zero, parse_seconds_range, parse_time_s, split_option
from loadgen.config import BenchConfig, BenchError
from loadgen.targets import Targets

NO_CLASS = "default"
"""Label of requests that name no class."""
Arrivals = Literal["poisson", "constant", "gamma"]
_TARGET_KEYS = {"ttft": "ttft_s", "tpot": "tpot_s", "stall": "max_stall_s", "e2e": "e2e_s"}
_LOAD_KEYS = ("rate", "arrivals", "cv", "prompt", "output", "prefix", "turns", "think")
"""What a trace says itself."""
CLASS_KEYS = ("share", *_LOAD_KEYS, *_TARGET_KEYS, "header", "service_tier")
"""Of a class's option; the share may also stand without its key."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenRange:
    """A length, drawn evenly from low..high."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, what: str) -> TokenRange:
        """`N` or `LOW-HIGH`.

        Raises:
            BenchError: not one or two whole numbers of at least 1, in order.
        """
        low, _, high = text.partition("-")
        try:
            parsed = cls(int(low), int(high or low))
        except ValueError:
            raise BenchError(f"{what} is {text!r}: write a number of tokens, or LOW-HIGH") from None
        if not 1 <= parsed.low <= parsed.high:
            raise BenchError(f"{what} is {text!r}: it must be at least 1, and LOW at most HIGH")
        return parsed

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


_ONE = TokenRange(1, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class ClassShare:
    """One class of the mix."""

    name: str
    share: float
    """Relative to the other classes' shares; 0 for a trace's label, which no other row is drawn as."""
    prompt_tokens: TokenRange
    output_tokens: TokenRange
    rate_per_s: float | None = None
    """Requests per second of its own; None: its share of the run's rate."""
    arrivals: Arrivals | None = None
    """None: as the run's."""
    cv: float | None = None
    """Coefficient of variation of the gaps between gamma arrivals; None: as the run's burstiness says."""
    prefix_tokens: int | None = None
    """That all its prompts begin with, instead of the prefix of all classes; None: that one."""
    turns: TokenRange = _ONE
    """Of its conversations, the first one included."""
    think_s: tuple[float, float] = (0.0, 0.0)
    """Between an answer and the next turn, drawn evenly."""
    targets: Targets = dataclasses.field(default_factory=Targets)
    header: tuple[str, str] | None = None
    """Sent with each request; None: only what names the class."""
    service_tier: str | None = None
    """Names the class in the body; None: as `--class-in` says."""

    @property
    def mean_turns(self) -> float:
        return (self.turns.low + self.turns.high) / 2.0

    @property
    def has_own_arrivals(self) -> bool:
        return not (self.rate_per_s is None and self.arrivals is None and self.cv is None)


@dataclasses.dataclass(frozen=True, slots=True)
class ClassMix:
    """The classes of a load test. At least one."""

    classes: tuple[ClassShare, ...]
    names_class: bool
    """False: requests say nothing about a class, and `classes` holds one entry under `NO_CLASS`."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.classes)

    @property
    def asked_names(self) -> tuple[str, ...]:
        """Of the classes that requests name."""
        return tuple(name for name in self.names if self.names_class and name != NO_CLASS)

    @property
    def targets(self) -> dict[str, Targets]:
        """That the options of the classes set, by class."""
        return {c.name: c.targets for c in self.classes if c.targets.judges}

    def find(self, name: str) -> ClassShare:
        """Raises KeyError: the mix has no such class."""
        for slo_class in self.classes:
            if slo_class.name == name:
                return slo_class
        raise KeyError(name)

    def draw(self, rng: random.Random) -> ClassShare:
        """A class for a conversation: one of many turns starts less often, so that requests keep their shares."""
        return rng.choices(self.classes, weights=[c.share / c.mean_turns for c in self.classes])[0]

    def with_labels(self, labels: Iterable[str | None]) -> ClassMix:
        """The mix of a trace: its labels beside the classes of the options, which its unlabelled rows are drawn from.

        A class of the options that neither is a label nor has rows to draw is left out.
        """
        seen = dict.fromkeys(labels)
        drawn = self.classes if None in seen else tuple(c for c in self.classes if c.name in seen)
        known = {c.name for c in drawn}
        added = tuple(ClassShare(name, 0.0, _ONE, _ONE) for name in seen if name is not None and name not in known)
        return ClassMix((*drawn, *added), self.names_class or bool(added))


def parse_class_mix(config: BenchConfig, option: str = "--class", keys: tuple[str, ...] = CLASS_KEYS) -> ClassMix:
    """The mix that the options describe.

    Args:
        option: what a user calls the option of a class, for the messages.
        keys: those that it takes.

    Raises:
        BenchError: a class cannot be read, or names repeat.
    """
    prompt = TokenRange.parse(config.prompt_tokens, "--prompt-tokens")
    output = TokenRange.parse(config.output_tokens, "--output-tokens")
    if not config.classes:
        _check_burstiness(config, ())
        return ClassMix((ClassShare(NO_CLASS, 1.0, prompt, output),), names_class=False)
    classes = tuple(
        _parse_class(text, option, ClassShare("", 1.0, prompt, output), keys, config.trace_path is not None)
        for text in config.classes
    )
    names = [c.name for c in classes]
    if len(set(names)) != len(names):
        raise BenchError(f"{option} names repeat: {', '.join(names)}")
    if not config.is_open_loop and any(c.has_own_arrivals for c in classes):
        raise BenchError(f"{option} gives rate, arrivals or cv, but --concurrency sends when an answer is there")
    _check_burstiness(config, classes)
    return ClassMix(classes, names_class=True)


def _check_burstiness(config: BenchConfig, classes: tuple[ClassShare, ...]) -> None:
    """Raises BenchError: it is given, and nothing has gaps of that shape."""
    if config.burstiness == 1.0:
        return
    if not config.is_open_loop:
        raise BenchError(
            f"--burstiness is {config.burstiness:g}, but --concurrency sends when an answer is there: leave one out"
        )
    if config.arrival_kind != "gamma" and not any(c.arrivals == "gamma" and c.cv is None for c in classes):
        raise BenchError(
            f"--burstiness is {config.burstiness:g}, but the arrivals are {config.arrival_kind}: give "
            "--arrivals gamma, or leave --burstiness out"
        )


def _parse_class(text: str, option: str, defaults: ClassShare, keys: tuple[str, ...], is_replayed: bool) -> ClassShare:
    name, pairs = split_option(text, option)
    what = f"{option} {text!r}"
    unknown = sorted(set(pairs) - {"", *keys})
    if unknown:
        raise BenchError(f"{what}: unknown key {unknown[0]!r}: the known ones are {', '.join(keys)}")
    said_twice = sorted(set(pairs) & set(_LOAD_KEYS)) if is_replayed else []
    if said_twice:
        raise BenchError(f"{what}: {said_twice[0]} is what the trace says; leave it out, or --trace")
    if "" in pairs and "share" in pairs:
        raise BenchError(f"{what}: the share is given twice, as {pairs['']!r} and as share={pairs['share']!r}")
    if "service_tier" in pairs and not pairs["service_tier"]:
        raise BenchError(f"{what}: service_tier is empty: write the tier's name")

    def tokens(key: str, otherwise: TokenRange) -> TokenRange:
        return TokenRange.parse(pairs[key], f"{what}: {key}") if key in pairs else otherwise

    arrivals, cv = _parse_arrivals(pairs, what)
    return dataclasses.replace(
        defaults,
        name=name,
        share=parse_above_zero(pairs.get("share", pairs.get("", "1")), f"{what}: the share"),
        prompt_tokens=tokens("prompt", defaults.prompt_tokens),
        output_tokens=tokens("output", defaults.output_tokens),
        rate_per_s=parse_above_zero(pairs["rate"], f"{what}: rate") if "rate" in pairs else None,
        arrivals=arrivals,
        cv=cv,
        prefix_tokens=_parse_count(pairs["prefix"], f"{what}: prefix") if "prefix" in pairs else None,
        turns=tokens("turns", defaults.turns),
        think_s=parse_seconds_range(pairs["think"], f"{what}: think") if "think" in pairs else defaults.think_s,
        targets=_parse_targets(pairs, what),
        header=_parse_header(pairs["header"], what) if "header" in pairs else None,
        service_tier=pairs.get("service_tier"),
    )


def _parse_arrivals(pairs: Mapping[str, str], what: str) -> tuple[Arrivals | None, float | None]:
    kind = pairs.get("arrivals")
    if kind is not None and kind not in get_args(Arrivals):
        raise BenchError(f"{what}: arrivals is {kind!r}, it must be one of {', '.join(get_args(Arrivals))}")
    if "cv" not in pairs:
        return cast(Arrivals | None, kind), None
    if kind not in (None, "gamma"):
        raise BenchError(f"{what}: cv is of gamma arrivals, not of {kind} ones: leave one out")
    return "gamma", parse_above_zero(pairs["cv"], f"{what}: cv")


def _parse_targets(pairs: Mapping[str, str], what: str) -> Targets:
    return Targets(
        **{field: parse_time_s(pairs[key], f"{what}: {key}") for key, field in _TARGET_KEYS.items() if key in pairs}
    )


def _parse_header(text: str, what: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    is_token = bool(name.strip()) and all(char.isalnum() or char in "-_" for char in name.strip())
    if not is_token or not value.strip() or not value.isprintable() or not text.isascii():
        raise BenchError(f"{what}: header is {text!r}: write NAME:VALUE")
    return name.strip().lower(), value.strip()


def _parse_count(text: str, what: str) -> int:
    if not text.isdecimal():
        raise BenchError(f"{what} is {text!r}: write a number of tokens of at least 0")
    return int(text)
