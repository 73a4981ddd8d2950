"""Which latency classes a load test mixes, in which shares, with prompts and outputs of which lengths."""

from __future__ import annotations

import dataclasses
import math
import random

from loadgen.config import BenchConfig, BenchError

NO_CLASS = "default"
"""Label of requests that name no class."""


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


@dataclasses.dataclass(frozen=True, slots=True)
class ClassShare:
    """One class of the mix."""

    name: str
    share: float
    """Relative to the other classes' shares."""
    prompt_tokens: TokenRange
    output_tokens: TokenRange


@dataclasses.dataclass(frozen=True, slots=True)
class ClassMix:
    """The classes of a load test. At least one."""

    classes: tuple[ClassShare, ...]
    names_class: bool
    """False: requests say nothing about a class, and `classes` holds one entry under `NO_CLASS`."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.classes)

    def draw(self, rng: random.Random) -> ClassShare:
        return rng.choices(self.classes, weights=[c.share for c in self.classes])[0]


def parse_class_mix(config: BenchConfig, option: str = "--class") -> ClassMix:
    """The mix that the options describe.

    Args:
        option: what a user calls the option of a class, for the messages.

    Raises:
        BenchError: a class cannot be read, or names repeat.
    """
    prompt = TokenRange.parse(config.prompt_tokens, "--prompt-tokens")
    output = TokenRange.parse(config.output_tokens, "--output-tokens")
    if not config.classes:
        return ClassMix((ClassShare(NO_CLASS, 1.0, prompt, output),), names_class=False)
    classes = tuple(_parse_class(text, option, prompt, output) for text in config.classes)
    names = [c.name for c in classes]
    if len(set(names)) != len(names):
        raise BenchError(f"{option} names repeat: {', '.join(names)}")
    return ClassMix(classes, names_class=True)


def split_option(text: str, option: str) -> tuple[str, dict[str, str]]:
    """NAME and the KEY=VALUE pairs of `NAME:KEY=VALUE,...`; a value without a key stands under "".

    Raises:
        BenchError: there is no name, or a key repeats.
    """
    name, _, rest = text.partition(":")
    if not name.strip():
        raise BenchError(f"{option} {text!r} names no class: write NAME:...")
    pairs: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, has_value, value = part.partition("=")
        key, value = (key.strip(), value.strip()) if has_value else ("", part)
        if key in pairs:
            raise BenchError(f"{option} {text!r}: {key or 'the share'} is given twice")
        pairs[key] = value
    return name.strip(), pairs


def _parse_class(text: str, option: str, prompt: TokenRange, output: TokenRange) -> ClassShare:
    name, pairs = split_option(text, option)
    unknown = sorted(set(pairs) - {"", "share", "prompt", "output"})
    if unknown:
        raise BenchError(f"{option} {text!r}: unknown key {unknown[0]!r}: the known ones are share, prompt and output")
    share = pairs.get("share", pairs.get("", "1"))
    try:
        weight = float(share)
    except ValueError:
        weight = math.nan
    if not (weight > 0.0 and math.isfinite(weight)):
        raise BenchError(f"{option} {text!r}: the share is {share!r}, it must be a number above 0")
    return ClassShare(
        name,
        weight,
        TokenRange.parse(pairs["prompt"], f"{option} {text!r}: prompt") if "prompt" in pairs else prompt,
        TokenRange.parse(pairs["output"], f"{option} {text!r}: output") if "output" in pairs else output,
    )
