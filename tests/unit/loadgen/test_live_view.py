"""The live view: what it counts is what the report counts, and it is silent where nobody looks."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from loadgen.live_view import LiveView
from loadgen.metrics import Outcome
from loadgen.workload import PlannedRequest
from tests.sample_bench import sample_result, sample_trace


def _console(is_terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=is_terminal, width=140, color_system=None), out


@pytest.mark.parametrize(("is_terminal", "wanted"), [(False, True), (True, False)])
def test_nothing_is_written_where_nobody_looks(is_terminal: bool, wanted: bool) -> None:
    console, out = _console(is_terminal)
    with LiveView(("a",), console, lambda: 0.0, wanted=wanted) as view:
        view.sent(PlannedRequest(0, "a", 0.0, "", 1, 1), 0.1)
        assert not view.is_shown
    assert out.getvalue() == ""


@pytest.mark.parametrize("seed", range(3))
def test_in_the_end_it_shows_what_the_report_says(seed: int) -> None:
    result = sample_result(seed=seed, warm_up_s=0.0, cool_down_s=0.0)
    view = LiveView(result.config.classes, _console(True)[0], lambda: 0.0)
    for trace, outcome in result.judged:
        view.sent(trace.planned, trace.send_lag_s)
        view.finished(trace, outcome)
    for summary in result.classes:
        counter = view.counter(summary.name)
        assert (counter.num_sent, counter.num_open) == (summary.num_sent, 0)
        assert {o: n for o, n in counter.outcomes.items() if n} == {o: n for o, n in summary.outcomes.items() if n}
        assert counter.attainment == summary.offered_attainment


def _drawn(view: LiveView) -> list[list[str]]:
    console, out = _console(False)
    console.print(view.render())
    return [line.split() for line in out.getvalue().splitlines()]


def test_a_line_a_class_with_its_bar_and_below_the_lag() -> None:
    result = sample_result(3)
    now_s = [100.0]
    view = LiveView(("a", "b"), _console(True)[0], lambda: now_s[0], num_planned=9)
    view.started(100.0)
    assert [line[1:7] for line in _drawn(view)[1:3]] == [["0"] * 6] * 2
    now_s[0] = 104.0
    for i, outcome in enumerate(
        (Outcome.MET, Outcome.MET, Outcome.LATE_TPOT, Outcome.EXPIRED, Outcome.TIMED_OUT, None)
    ):
        planned = PlannedRequest(i, "a", 0.0, "", 1, 1)
        view.sent(planned, 0.001 * i)
        if outcome is not None:
            trace = result.run.traces[0]
            trace.planned = planned
            view.finished(trace, outcome)
    _, a, b, below = _drawn(view)
    assert a == ["a", "6", "1", "2", "1", "1", "1", "0.50", "█" * 8 + "·" * 12, "40.0%"]
    assert b == ["b", *["0"] * 6, "0.00", "·" * 20, "-"]
    text = " ".join(below)
    assert "4 s, 6 of 9 sent" in text and "max 5.0 ms" in text


def test_unjudged_requests_have_no_attainment_and_cancelled_ones_no_share() -> None:
    view = LiveView((), _console(True)[0], lambda: 0.0)
    rng = random.Random(0)
    for i, outcome in enumerate((Outcome.CANCELLED, Outcome.MET)):
        trace = sample_trace(i, "a", rng)
        view.sent(trace.planned, 0.0)
        view.finished(trace, outcome)
    assert view.counter("a").attainment == 1.0
    view.finished(sample_trace(2, "a", rng), Outcome.UNJUDGED)
    assert view.counter("a").attainment is None


def test_on_a_terminal_it_draws_and_leaves_nothing_behind() -> None:
    console, out = _console(True)
    with LiveView(("interactive",), console, lambda: 0.0) as view:
        assert view.is_shown
    drawn = out.getvalue()
    assert "interactive" in drawn
    assert drawn.rstrip("\r\n").endswith("\x1b[2K") or "\x1b[?25h" in drawn.rsplit("interactive", 1)[1]
