"""What share of each class's requests must meet their targets, and who says so."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from loadgen.capacity_config import CapacityConfig
from loadgen.config import BenchError


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a search asks: which rate is varied, and who must keep which objective."""

    varied: str | None
    """Class; None: the whole mix."""
    judged: tuple[str, ...]
    """Empty: every class with an objective."""
    objectives: Mapping[str, float]
    """As the options give them."""

    def resolve(self, sent: tuple[str, ...], served: Mapping[str, float]) -> dict[str, float]:
        """The objective of every judged class.

        Args:
            sent: classes that the load names.
            served: objectives as the server tells them, by the names of `sent`.

        Raises:
            BenchError: a class is not sent, or nobody says what to judge it by.
        """
        for name in (*self.judged, *self.objectives, *([self.varied] if self.varied else [])):
            if name not in sent:
                raise BenchError(f"class {name!r} is not sent: the load's classes are {', '.join(sent)}")
        known = {**{name: served[name] for name in sent if name in served}, **self.objectives}
        names = self.judged or tuple(name for name in sent if name in known)
        missing = [name for name in names or sent if name not in known]
        if missing:
            raise BenchError(
                f"class {missing[0]!r} has no objective: the server tells none at /v1/slo; give "
                f"--objective {missing[0]}=0.99"
            )
        return {name: known[name] for name in names}


def parse_question(config: CapacityConfig) -> Question:
    """What the options ask.

    Raises:
        BenchError: an objective or the frontier cannot be read.
    """
    objectives: dict[str, float] = {}
    for text in config.objective:
        name, has_value, value = (part.strip() for part in text.partition("="))
        if not name or not has_value:
            raise BenchError(f"--objective {text!r}: write NAME=SHARE, such as interactive=0.99")
        if name in objectives:
            raise BenchError(f"--objective gives class {name!r} twice")
        objectives[name] = _parse_share(value, f"--objective {text!r}")
    if config.frontier is None:
        return Question(config.vary, config.judge, objectives)
    return _parse_frontier(config.frontier, objectives)


def _parse_frontier(text: str, objectives: Mapping[str, float]) -> Question:
    """`VARIED:JUDGED[>=SHARE][,JUDGED[>=SHARE]]...`"""
    what = f"--frontier {text!r}"
    varied, _, rest = (part.strip() for part in text.partition(":"))
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    if not varied or not parts:
        raise BenchError(f"{what}: write VARIED:JUDGED>=SHARE, such as batch:interactive>=0.99")
    merged, judged = dict(objectives), []
    for part in parts:
        name, has_share, share = (piece.strip() for piece in part.partition(">="))
        if not name or "<" in name or ">" in name:
            raise BenchError(f"{what}: {part!r} is no JUDGED>=SHARE, such as interactive>=0.99")
        if name in judged:
            raise BenchError(f"{what} names {name!r} twice")
        if has_share and name in objectives:
            raise BenchError(f"{what} and --objective both say what {name!r} must keep: leave one out")
        judged.append(name)
        if has_share:
            merged[name] = _parse_share(share, what)
    return Question(varied, tuple(judged), merged)


def _parse_share(text: str, what: str) -> float:
    number, percent, _ = text.partition("%")
    try:
        share = float(number) / (100.0 if percent else 1.0)
    except ValueError:
        share = math.nan
    if not 0.0 < share < 1.0:
        raise BenchError(f"{what}: the share is {text!r}, it must be above 0 and below 1, such as 0.99 or 99%")
    return share
