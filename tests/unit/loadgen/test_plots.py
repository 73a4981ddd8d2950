"""The pictures: what is drawn is measured in the drawing and compared with the requests."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics import LATE, Outcome, measure
from loadgen.plots import (
    TPOT,
    TTFT,
    Latency,
    plot_attainment,
    plot_cdf,
    plot_first_tokens,
    plot_send_lag,
    plot_timeline,
)
from loadgen.result import BenchResult
from loadgen.svg_chart import Axis, round_step
from loadgen.targets import TargetBook, Targets
from loadgen.trace import TraceEnd
from tests.html_page import Element, Page
from tests.sample_bench import STARTED_S, sample_result

FILLS = {
    Outcome.MET: "met",
    **dict.fromkeys(LATE, "late"),
    **dict.fromkeys((Outcome.REFUSED, Outcome.EXPIRED), "refused"),
    **dict.fromkeys((Outcome.FAILED, Outcome.TIMED_OUT), "failed"),
    **dict.fromkeys((Outcome.CANCELLED, Outcome.UNJUDGED), "not-judged"),
}


def _blocks(page: Page) -> list[tuple[str, Element]]:
    """Filled blocks with the names of their fillings, without those of the legend."""
    blocks = [e for e in page.all("rect") if e.attributes.get("class") == "block" and e.attributes["height"] != "12"]
    return [(re.sub(r"fill:url\(#(.*)\)", r"\1", e.attributes["style"]), e) for e in blocks]


def _number(element: Element, name: str) -> float:
    return float(element.attributes[name])


def _y_ticks(page: Page) -> dict[str, float]:
    """Where the labels of the vertical axis stand."""
    texts = [
        e for e in page.all("text") if e.attributes.get("text-anchor") == "end" and e.attributes["class"] == "tick"
    ]
    return {e.text: _number(e, "y") - 4.0 for e in texts if e.text != "cool-down"}


@pytest.mark.parametrize("seed", range(3))
def test_a_bar_is_divided_as_the_outcomes_of_its_class(seed: int) -> None:
    result = sample_result(seed=seed)
    blocks = _blocks(Page(plot_attainment(result)))
    tops = sorted({_number(e, "y") for _, e in blocks})
    assert len(tops) == len(result.classes)
    for top, summary in zip(tops, result.classes, strict=True):
        widths = {fill: _number(e, "width") for fill, e in blocks if _number(e, "y") == top}
        counts: Counter[str] = Counter()
        for outcome, count in summary.outcomes.items():
            counts[FILLS[outcome]] += count
        counts = +counts
        assert set(widths) == set(counts)
        for fill, count in counts.items():
            assert widths[fill] / sum(widths.values()) == pytest.approx(count / summary.num_sent, abs=2e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_timeline_holds_every_request_in_the_filling_of_its_outcome(seed: int) -> None:
    result = sample_result(seed=seed)
    page = Page(plot_timeline(result) or "")
    ticks = _y_ticks(page)
    (low, high) = (ticks["0"], min(ticks.values()))
    top = max(int(text) for text in ticks)
    drawn: Counter[str] = Counter()
    for fill, e in _blocks(page):
        drawn[fill] += round(_number(e, "height") / (low - high) * top)
    assert drawn == Counter(FILLS[outcome] for _, outcome in result.judged)
    assert [e.text for e in page.all("text") if e.text.endswith(("up", "down"))] == ["warm-up", "cool-down"]


@pytest.mark.parametrize("latency", [TTFT, TPOT])
def test_the_curve_stands_at_the_share_that_was_within_the_target(latency: Latency) -> None:
    result = sample_result(150, seed=4)
    page = Page(plot_cdf(result, latency) or "")
    curves = [e for e in page.all("path") if e.attributes["class"].startswith("line")]
    targets = [e for e in page.all("line") if e.attributes["class"].startswith("target")]
    ticks = _y_ticks(page)
    assert len(curves) == len(targets) == len(result.classes)
    for curve, target, summary in zip(curves, targets, result.classes, strict=True):
        values, limit_s = _values(result, summary.name, latency)
        expected = sum(value <= limit_s for value in values) / len(values)
        points = [tuple(map(float, each.split())) for each in curve.attributes["d"][1:].split("L")]
        at = max((y for x, y in ((p[0], -p[1]) for p in points) if x <= _number(target, "x1") + 0.01), default=0.0)
        share = (ticks["0%"] + at) / (ticks["0%"] - ticks["100%"])
        near = sum(abs(value - limit_s) < 0.005 for value in values) / len(values)
        assert share == pytest.approx(expected, abs=near + 0.01)
        assert points == sorted(points, key=lambda p: (p[0], -p[1]))


def _values(result: BenchResult, name: str, latency: Latency) -> tuple[list[float], float]:
    mine = [t for t, _ in result.counted if t.planned.slo_class == name]
    limits = [limit for t in mine if (limit := latency.target_s(result.targets_of(t))) is not None]
    values = [latency.value_s(measure(t)) for t in mine if t.end is TraceEnd.COMPLETED]
    return [value for value in values if value is not None], max(limits)


def test_the_lag_of_each_stretch_is_that_of_its_latest_request() -> None:
    result = sample_result(60, seed=5)
    page = Page(plot_send_lag(result) or "")
    ticks = _y_ticks(page)
    step = max(float(text) for text in ticks)
    scale = (ticks[min(ticks, key=float)] - min(ticks.values())) / step
    bottom = max(ticks.values())
    drawn = [(bottom - _number(e, "cy")) / scale for e in page.all("circle") if e.attributes["r"] == "2.5"]
    width_s = float(re.search(r"latest request of each (\S+) s", page.all("svg")[0].text)[1])  # type: ignore[index]
    latest: dict[int, float] = {}
    for trace, _ in result.judged:
        place = int((trace.intended_s - STARTED_S) / width_s)
        latest[place] = max(latest.get(place, 0.0), trace.send_lag_s * 1e3)
    assert drawn == pytest.approx([latest[place] for place in sorted(latest)], abs=0.6 / scale)


def test_nothing_to_show_is_no_picture() -> None:
    empty = sample_result(0, warm_up_s=0.0, cool_down_s=0.0)
    assert plot_timeline(empty) is plot_send_lag(empty) is plot_cdf(empty, TTFT) is None
    assert not _blocks(Page(plot_attainment(empty)))


def test_a_picture_of_many_requests_stays_small() -> None:
    result = sample_result(3000, seed=6, save_requests=False)
    result = dataclasses.replace(result, classes=result.classes)
    sizes = [len(text or "") for text in (plot_cdf(result, TTFT), plot_timeline(result), plot_send_lag(result))]
    assert all(0 < size < 60_000 for size in sizes)


@pytest.mark.parametrize("high", [1e-9, 0.013, 0.9, 1.0, 7.0, 49.0, 5e5])
def test_axes_begin_at_zero_hold_their_values_and_have_round_ticks(high: float) -> None:
    axis = Axis.from_zero("x", high)
    exact = Axis.up_to("x", high)
    assert axis.ticks[0][0] == 0.0 and axis.high >= high * (1 - 1e-9) and exact.high == high
    assert 2 <= len(axis.ticks) <= 7
    assert axis.share(axis.high) == 1.0 and axis.share(2 * axis.high) == 1.0 and axis.share(-1.0) == 0.0
    step = axis.ticks[1][0]
    assert float(f"{step:.0e}") == pytest.approx(step) and f"{step:.0e}"[0] in "125"
    assert round_step(step) == pytest.approx(step)


def test_every_completed_request_is_a_mark_where_it_was_due_and_as_high_as_its_first_token_took() -> None:
    result = sample_result()
    text = plot_first_tokens(result)
    assert text is not None
    marks = [e for e in Page(text).elements if e.attributes.get("class", "").startswith("spot")]
    y_ticks = _y_ticks(Page(text))
    ticks = sorted((float(name), y) for name, y in y_ticks.items() if re.fullmatch(r"[\d.]+", name))
    (low, bottom), (high, top) = ticks[0], ticks[-1]
    for name, tag, legend_y in (("interactive", "circle", "6.0"), ("batch", "path", "6.0")):
        found = []
        for e in marks:
            if e.tag != tag:
                continue
            at = re.fullmatch(r"translate\((\S+) (\S+)\)", e.attributes.get("transform", ""))
            x, y = (e.attributes["cx"], e.attributes["cy"]) if at is None else (at[1], at[2])
            if (x, y) != ("15.0", legend_y):
                found.append(low + (bottom - float(y)) * (high - low) / (bottom - top))
        expected = [
            measure(trace).ttft_s * 1e3
            for trace, _ in result.judged
            if trace.end is TraceEnd.COMPLETED and trace.planned.slo_class == name
        ]
        assert sorted(found) == pytest.approx(sorted(expected), abs=1.0)


def test_classes_that_differ_by_far_have_an_axis_of_decades() -> None:
    result = sample_result()
    book = TargetBook({"interactive": Targets(ttft_s=0.15), "batch": Targets(ttft_s=600.0)}, {})
    far = dataclasses.replace(result, book=book)
    near_svg, far_svg = plot_cdf(result, TTFT), plot_cdf(far, TTFT)
    marks = plot_first_tokens(far)
    assert near_svg is not None and far_svg is not None and marks is not None
    assert ">1,000<" in far_svg and ">1,000<" not in near_svg
    assert "target 600 s" in far_svg and near_svg.count('class="target') == far_svg.count('class="target') == 2
    heights = [_number(e, "y1") for e in Page(marks).all("line") if e.attributes.get("class", "").startswith("target")]
    assert len(heights) == 2
    ticks = _y_ticks(Page(marks))
    assert min(heights) == pytest.approx(ticks["100"] - (ticks["1"] - ticks["100"]) / 2 * math.log10(6), abs=0.2)


@given(st.floats(1e-4, 1e4), st.floats(1.0, 1e4))
def test_decades_hold_both_ends_and_equal_ratios_are_equally_far(low: float, ratio: float) -> None:
    axis = Axis.of_decades("x", low, low * ratio)
    assert axis.low <= low * (1 + 1e-6) and axis.high >= low * ratio * (1 - 1e-6)
    assert axis.share(0.0) == 0.0 and axis.share(axis.high * 2.0) == 1.0
    middle = (axis.low * axis.high) ** 0.5
    assert axis.share(middle) == pytest.approx(0.5)
    assert all(float(text.replace(",", "")) == pytest.approx(value) for value, text in axis.ticks)


def test_long_answers_are_told_in_seconds() -> None:
    result = sample_result()
    short, long = plot_cdf(result, TTFT), plot_cdf(_slowed(result), TTFT)
    assert short is not None and "time to first token, ms" in short
    assert long is not None and "time to first token, s<" in long
    texts = [e.text for e in Page(long).all("text") if e.attributes["class"] == "tick"]
    assert all(len(text) <= 5 for text in texts)


def _slowed(result: BenchResult) -> BenchResult:
    """As if every request had been due half a minute earlier."""
    judged = [
        (dataclasses.replace(trace, intended_s=trace.intended_s - 30.0), outcome) for trace, outcome in result.judged
    ]
    window = dataclasses.replace(result.window, start_s=-1e9, end_s=None)
    return dataclasses.replace(result, judged=tuple(judged), window=window)
