"""Words for what was missed: recounted from the requests themselves."""

from __future__ import annotations

import dataclasses
import re
import statistics

import pytest

from loadgen.class_mix import parse_class_mix
from loadgen.explanation import explain
from loadgen.metrics import Outcome, measure
from loadgen.result import make_result
from loadgen.targets import TargetBook, Targets
from loadgen.trace import TraceEnd
from tests.sample_bench import sample_result


@pytest.mark.parametrize("seed", range(4))
def test_the_numbers_of_a_class_add_up_to_its_requests(seed: int) -> None:
    result = sample_result(seed=seed)
    rows = dict(explain(result))
    for summary in result.classes:
        met, sent = re.match(r"(\d+) of (\d+) kept every target; ", rows[summary.name]).groups()  # type: ignore[union-attr]
        rest = [int(n) for n in re.findall(r"(?:; |, )(\d+) (?=got|stood|refused|given|failed|not|left|without)",
                                           rows[summary.name])]  # fmt: skip
        assert (int(met), int(sent)) == (summary.outcomes[Outcome.MET], summary.num_sent)
        assert int(met) + sum(rest) == summary.num_sent
        assert rest == sorted(rest, reverse=True)
        refused = summary.outcomes[Outcome.REFUSED]
        assert (f", {refused} refused by the server (HTTP 429 full)" in rows[summary.name]) == (refused > 0)


def test_a_miss_is_told_by_how_far_it_was_beyond_its_target() -> None:
    result = sample_result(names=("only",))
    book = TargetBook({"only": Targets(ttft_s=0.05)}, {})
    result = make_result(result.config, parse_class_mix(result.config), result.server, book, result.run)
    over_ms = [
        (measure(trace).ttft_s - 0.05) * 1e3
        for trace, outcome in result.counted
        if outcome is Outcome.LATE_TTFT and trace.end is TraceEnd.COMPLETED
    ]
    expected = f"(by {statistics.median(over_ms):.3g} ms at the median, {max(over_ms):.3g} ms at most)"
    assert expected in dict(explain(result))["only"]


def test_a_class_that_kept_all_and_one_that_sent_nothing() -> None:
    result = sample_result(names=("only",))
    completed = [trace for trace in result.run.traces if trace.end is TraceEnd.COMPLETED]
    run = dataclasses.replace(result.run, traces=tuple(completed))
    book = TargetBook({"only": Targets(ttft_s=60.0)}, {})
    result = make_result(result.config, parse_class_mix(result.config), result.server, book, run)
    assert explain(result) == [("only", f"All {result.overall.num_sent} kept every target.")]
    assert explain(sample_result(0, warm_up_s=0.0, cool_down_s=0.0)) == []
