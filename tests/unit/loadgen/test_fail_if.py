"""Conditions: their grammar, and when they are met."""

from __future__ import annotations

import pytest

from loadgen.bootstrap import Difference
from loadgen.compare import Comparison, Finding, Row
from loadgen.config import BenchError
from loadgen.fail_if import Condition, parse_condition
from loadgen.intervals import Interval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("attainment.interactive<-1%", ("attainment", "interactive", "<", -0.01, False)),
        ("attainment < -0.5 %", ("attainment", "all", "<", -0.005, False)),
        ("ttft_p99.batch>+10%", ("ttft_p99", "batch", ">", 0.1, True)),
        ("tpot_p50.my-class.v2>5ms", ("tpot_p50", "my-class.v2", ">", 0.005, False)),
        ("ttft_p50<-20ms", ("ttft_p50", "all", "<", -0.02, False)),
        ("attainment<0%", ("attainment", "all", "<", 0.0, False)),
    ],
)
def test_conditions_are_read(text: str, expected: tuple[str, str, str, float, bool]) -> None:
    found = parse_condition(text)
    assert (found.metric, found.slo_class, found.side, found.limit, found.is_relative) == (
        *expected[:3],
        pytest.approx(expected[3]),
        expected[4],
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attainment", "write METRIC"),
        ("attainment<-1", "write METRIC"),
        ("attainment=1%", "write METRIC"),
        ("attainment<-1%%", "write METRIC"),
        ("ttft_p95>+1%", "no metric 'ttft_p95'; the metrics are attainment, ttft_p50, ttft_p99, tpot_p50, tpot_p99"),
        ("attainment<-1ms", "percentage points"),
        ("attainment<1%", "may be none at all: write <-1%"),
        ("ttft_p99>-10%", r"may be none at all: write >\+10%"),
    ],
)
def test_what_is_no_condition_is_told(text: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        parse_condition(text)


def _comparison(metric: str, first: float, second: float, finding: Finding) -> Comparison:
    change = second - first
    difference = Difference(first, second, Interval(change - 0.001, change + 0.001))
    rows = (
        Row(metric, "a", 500, 500, difference, None, finding),
        Row("tpot_p50", "a", 0, 0, None, None, Finding.TOO_FEW),
    )
    return Comparison(True, 500, 0, False, rows)


@pytest.mark.parametrize(
    ("text", "first", "second", "finding", "is_met"),
    [
        ("attainment.a<-1%", 0.99, 0.975, Finding.WORSE, True),
        ("attainment.a<-1%", 0.99, 0.985, Finding.WORSE, False),
        ("attainment.a<-1%", 0.99, 0.975, Finding.NO_DIFFERENCE, False),
        ("attainment.a<-1%", 0.975, 0.99, Finding.BETTER, False),
        ("attainment.a>+1%", 0.975, 0.99, Finding.BETTER, True),
        ("ttft_p99.a>+10%", 0.2, 0.23, Finding.WORSE, True),
        ("ttft_p99.a>+10%", 0.2, 0.21, Finding.WORSE, False),
        ("ttft_p99.a>+20ms", 0.2, 0.23, Finding.WORSE, True),
        ("ttft_p99.a>+40ms", 0.2, 0.23, Finding.WORSE, False),
    ],
)
def test_a_condition_is_met_by_a_change_that_is_beyond_and_shown(
    text: str, first: float, second: float, finding: Finding, is_met: bool
) -> None:
    condition = parse_condition(text)
    assert condition.is_met(_comparison(condition.metric, first, second, finding)) is is_met


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attainment.b<-1%", "no request is of class 'b': classes are a"),
        ("tpot_p50.a>+1%", "cannot be checked: 0 requests with that metric are too few"),
        ("attainment.a<-1%", "cannot be checked: 500 requests"),
    ],
)
def test_what_cannot_be_checked_is_an_error_and_no_pass(text: str, message: str) -> None:
    condition: Condition = parse_condition(text)
    with pytest.raises(BenchError, match=message):
        condition.is_met(_comparison("attainment", 0.9, 0.8, Finding.TOO_FEW))
