"""The load test of a probe: the same plan at every rate, with its time scaled."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from loadgen.capacity_config import CapacityConfig
from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig, BenchError
from loadgen.offered_load import OfferedLoad, ReplayedRows
from loadgen.workload import PlannedRequest, Workload

SEARCH = CapacityConfig()
OWN = ("interactive:rate=2,prompt=20", "batch:rate=6,output=9")


def _load(varied: str | None = None, rows: ReplayedRows | None = None, **options: Any) -> OfferedLoad:
    config = BenchConfig("http://x", **options)
    return OfferedLoad(config, SEARCH, parse_class_mix(config), varied, rows)


def _plan(config: BenchConfig) -> list[PlannedRequest]:
    return list(Workload(config, parse_class_mix(config)).requests())


@pytest.mark.parametrize("classes", [(), ("a:1,prompt=20-90", "b:3,output=5-50"), ("a:1,turns=3", "b:1")])
def test_the_plan_at_twice_the_rate_is_the_same_in_half_the_time(classes: tuple[str, ...]) -> None:
    load = _load(classes=classes, requests=40, duration_s=4.0, cancel_share=0.2)
    slow, fast = (_plan(load.at(rate, 0, 1, {})) for rate in (10.0, 20.0))
    assert len(slow) >= 40 and len(fast) == pytest.approx(2 * len(slow), abs=1)
    for one, other in zip(slow, fast, strict=False):
        assert (one.offset_s is None) == (other.offset_s is None)
        if one.offset_s is not None and other.offset_s is not None:
            assert one.offset_s == pytest.approx(2.0 * other.offset_s)
        assert dataclasses.replace(one, offset_s=None) == dataclasses.replace(other, offset_s=None)


def test_looks_are_other_plans_and_runs_other_words() -> None:
    load = _load(requests=20, duration_s=1.0)
    first, again, next_look = (_plan(load.at(10.0, look, run, {})) for look, run in ((0, 1), (0, 2), (1, 3)))
    assert [p.prompt for p in first] != [p.prompt for p in again]
    assert [p.offset_s for p in first] == [p.offset_s for p in again] != [p.offset_s for p in next_look]


def test_a_run_is_long_enough_for_every_judged_class() -> None:
    load = _load(classes=("a:0.9", "b:0.1"), requests=100, duration_s=5.0)
    for rate, judged, length_s in ((10.0, "a", 100 / 9.0), (10.0, "b", 100.0), (1000.0, "a", 5.0)):
        config = load.at(rate, 0, 1, {judged: 0.9})
        assert config.requests == pytest.approx(rate * length_s / 0.8, abs=1)
        assert config.duration_s is None
        assert config.warm_up_s == config.cool_down_s == pytest.approx(0.1 * length_s / 0.8)


def test_rates_of_classes_grow_along_the_mix_or_alone() -> None:
    whole = _load(classes=OWN)
    assert whole.start_rate_per_s == 8.0
    assert whole.class_rates(16.0) == {"interactive": 4.0, "batch": 12.0}
    assert whole.at(16.0, 0, 1, {}).classes == ("interactive:prompt=20,rate=4.0", "batch:output=9,rate=12.0")
    alone = _load("batch", classes=OWN)
    assert alone.start_rate_per_s == 6.0
    assert alone.class_rates(16.0) == {"interactive": 2.0, "batch": 16.0}
    assert alone.at(16.0, 0, 1, {}).classes == ("interactive:prompt=20,rate=2.0", "batch:output=9,rate=16.0")


def test_what_is_sent_has_the_rates_that_are_told() -> None:
    """Also where the other classes divide --rate."""
    for options in ({"classes": OWN}, {"classes": ("interactive:0.25", "batch:0.75"), "rate": 8.0}):
        for varied, rate, wanted in ((None, 16.0, (4.0, 12.0)), ("batch", 40.0, (2.0, 40.0))):
            load = _load(varied, duration_s=200.0, requests=1, **options)
            assert tuple(load.class_rates(rate).values()) == wanted
            plan = _plan(load.at(rate, 0, 1, {}))
            length_s = plan[-1].offset_s or 0.0
            for name, expected in zip(("interactive", "batch"), wanted, strict=True):
                assert sum(p.slo_class == name for p in plan) / length_s == pytest.approx(expected, rel=0.15)


def test_the_other_classes_send_the_same_while_one_is_varied() -> None:
    """Times, lengths and who leaves, but for the words at the head of a prompt."""
    classes = ("interactive:rate=2,prompt=20-90,output=5-50,turns=1-3,think=1-2", OWN[1])
    load = _load("batch", classes=classes, duration_s=20.0, requests=1, cancel_share=0.3)
    plans = [_plan(load.at(rate, 0, 1, {})) for rate in (3.0, 30.0)]
    sent = [
        [
            (p.offset_s, p.think_s, p.num_prompt_tokens, p.num_output_tokens, p.cancel_after_tokens, p.after is None)
            for p in plan
            if p.slo_class == "interactive"
        ]
        for plan in plans
    ]
    num_shared = min(map(len, sent))
    assert num_shared > 20
    assert sent[0][: num_shared - 3] == sent[1][: num_shared - 3]


def test_a_trace_is_sent_whole_at_its_rate_and_never_prolonged() -> None:
    load = _load(rows=ReplayedRows(500, 2.5), trace_path="x.jsonl")
    assert (load.start_rate_per_s, load.can_prolong, load.class_rates(5.0)) == (2.5, False, {})
    config = load.at(5.0, 0, 1, {"a": 0.9})
    assert (config.rate, config.requests, config.duration_s) == (5.0, None, None)
    assert config.warm_up_s == config.cool_down_s == pytest.approx(10.0)
    first = _load(rows=ReplayedRows(500, 2.5), trace_path="x.jsonl", requests=100, rate=7.0)
    assert first.start_rate_per_s == 7.0
    assert (first.at(5.0, 0, 1, {}).requests, first.at(5.0, 0, 1, {}).warm_up_s) == (100, pytest.approx(2.0))


@pytest.mark.parametrize(
    ("varied", "options", "message"),
    [
        (None, {"concurrency": 3}, "leave out --concurrency"),
        ("x", {"classes": OWN}, "class 'x' is not sent"),
        ("batch", {"classes": ("interactive", "batch:rate=2")}, "which rate does 'interactive' keep"),
        ("batch", {"classes": OWN[:0], "trace_path": "x", "rows": ReplayedRows(5, 1.0)}, "leave out --trace"),
    ],
)
def test_what_leaves_the_load_open_is_told(varied: str | None, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        _load(varied, **options)
