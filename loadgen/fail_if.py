"""Conditions on which a comparison fails: `METRIC[.CLASS]<LIMIT` or `METRIC[.CLASS]>LIMIT`.

    condition = metric ["." class] ("<" | ">") limit
    metric    = "attainment" | "ttft_p50" | "ttft_p99" | "tpot_p50" | "tpot_p99"
    class     = a class of the runs; without one: all requests
    limit     = ["+" | "-"] number unit
    unit      = "%" | "ms"

The limit is one of the change from the first run to the second: for an attainment in percentage points (`%`), for a
latency in percent of the first run's value (`%`) or in milliseconds (`ms`). `attainment.interactive<-1%` fails where
the attainment of interactive fell by more than one point, `ttft_p99.batch>+10%` where that latency rose by more than
ten percent. A condition is met only by a change that is also shown (its interval excludes 0): luck alone fails nothing.
So `<` takes a limit of at most 0 and `>` one of at least 0.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from loadgen.compare import ALL, ATTAINMENT, METRICS, Comparison, Finding
from loadgen.config import BenchError

_FORM = re.compile(
    r"(?P<metric>[a-z0-9_]+)(?:\.(?P<slo_class>[^<>]+?))?\s*(?P<side>[<>])\s*(?P<limit>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>%|ms)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    text: str
    metric: str
    slo_class: str
    side: Literal["<", ">"]
    limit: float
    """A share for `%`, seconds for `ms`."""
    is_relative: bool
    """The limit is one of the change in relation to the first run's value."""

    def is_met(self, comparison: Comparison) -> bool:
        """Whether the comparison fails by it.

        Raises:
            BenchError: the runs have no such class or metric, or too few requests to tell.
        """
        row = comparison.find(self.metric, self.slo_class)
        if row is None:
            names = dict.fromkeys(row.slo_class for row in comparison.rows)
            raise BenchError(
                f"--fail-if {self.text!r}: no request is of class {self.slo_class!r}: classes are {', '.join(names)}"
            )
        change = row.relative_change if self.is_relative else None if row.difference is None else row.difference.change
        if change is None or row.finding is Finding.TOO_FEW:
            raise BenchError(
                f"--fail-if {self.text!r} cannot be checked: {min(row.num_first, row.num_second)} requests with that "
                "metric are too few; send more, or leave the condition out"
            )
        is_beyond = change < self.limit if self.side == "<" else change > self.limit
        return is_beyond and row.finding is not Finding.NO_DIFFERENCE


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        BenchError: it is none.
    """
    what = f"--fail-if {text!r}"
    form = _FORM.fullmatch(text.strip())
    if form is None:
        raise BenchError(
            f"{what}: write METRIC[.CLASS]<LIMIT or >LIMIT with a unit, such as attainment.interactive<-1%, "
            "ttft_p99.batch>+10% or tpot_p50>+5ms"
        )
    metric, unit, number = form["metric"], form["unit"], float(form["limit"])
    if metric not in METRICS:
        raise BenchError(f"{what}: there is no metric {metric!r}; the metrics are {', '.join(METRICS)}")
    if metric == ATTAINMENT and unit != "%":
        raise BenchError(f"{what}: an attainment changes by percentage points: write %, such as <-1%")
    is_below = form["side"] == "<"
    if number > 0.0 if is_below else number < 0.0:
        raise BenchError(
            f"{what}: a change {'below' if is_below else 'above'} {form['limit']}{unit} may be none at all: "
            f"write {'<-' if is_below else '>+'}{abs(number):g}{unit}"
        )
    return Condition(
        text=text.strip(),
        metric=metric,
        slo_class=(form["slo_class"] or ALL).strip(),
        side="<" if is_below else ">",
        limit=number / (100.0 if unit == "%" else 1000.0),
        is_relative=unit == "%" and metric != ATTAINMENT,
    )
