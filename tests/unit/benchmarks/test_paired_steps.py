"""What decides whether a benchmark's run counts, and what its verdict says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.paired_steps import (
    Criterion,
    PairedResult,
    PairPlan,
    ProcessorTimes,
    Repetition,
    StepSample,
    Verdict,
    drift,
    judge,
    measure_repetition,
    parse_machine_s,
    parse_own_s,
    read_processor_times,
)
from offload.step_transfers import StepTransfers

STAT = """cpu  100 10 50 900 30 4 6 20 7 0
cpu0 50 5 25 450 15 2 3 10 3 0
ctxt 1234
"""


def samples(*times_s: float) -> tuple[StepSample, ...]:
    return tuple(map(StepSample, times_s))


def repetition(baseline_s: float, subject_s: float, foreign_share: float = 0.0, count: int = 20) -> Repetition:
    return Repetition(samples(*[baseline_s] * count), samples(*[subject_s] * count), foreign_share)


def test_busy_time_of_the_machine_is_all_but_idle_and_waiting_guests_counted_once() -> None:
    assert parse_machine_s(STAT, 100) == pytest.approx((100 + 10 + 50 + 4 + 6 + 20) / 100)


def test_a_machine_that_tells_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="foreign processor time is not known"):
        parse_machine_s("cpu0 1 2 3 4 5 6 7 8", 100)


@pytest.mark.parametrize("name", ["python", "a (b) c", "x) 1 2"])
def test_own_time_whatever_the_name_of_the_process(name: str) -> None:
    fields = ["S", *map(str, range(4, 14)), "250", "50", *map(str, range(16, 53))]
    assert parse_own_s(f"77 ({name}) {' '.join(fields)}", 100) == pytest.approx(3.0)


def test_processor_times_grow() -> None:
    before = read_processor_times()
    sum(range(300_000))
    after = read_processor_times()
    assert after.wall_s > before.wall_s and after.own_s >= before.own_s and after.machine_s >= before.machine_s


@pytest.mark.parametrize(("machine_s", "own_s", "expected"), [(3.0, 3.0, 0.0), (3.2, 3.0, 0.1), (2.9, 3.0, 0.0)])
def test_foreign_share_is_of_wall_time_and_never_negative(machine_s: float, own_s: float, expected: float) -> None:
    before, after = ProcessorTimes(10.0, 100.0, 7.0), ProcessorTimes(12.0, 100.0 + machine_s, 7.0 + own_s)
    assert after.foreign_share(before) == pytest.approx(expected)


def test_drift_is_the_spread_over_the_smallest() -> None:
    assert drift([1.0, 1.1, 1.05]) == pytest.approx(0.1)


def test_a_run_by_the_rules_counts() -> None:
    assert PairedResult(tuple(repetition(1.0, 2.0, 0.05) for _ in range(3))).invalid_reasons() == []


@pytest.mark.parametrize(
    ("repetitions", "reason"),
    [
        ([repetition(1.0, 2.0, 0.06)] * 3, "other processes took 6%"),
        ([repetition(1.0, 2.0), repetition(1.06, 2.0), repetition(1.0, 2.0)], "the baseline drifted by 6.0%"),
        ([repetition(1.0, 2.0, count=19)] * 3, "19 steps a repetition, at least 20"),
        ([repetition(1.0, 2.0)] * 2, "2 repetitions, 3 are needed"),
        ([Repetition(samples(*[1.0] * 10, *[1.2] * 10), samples(*[2.0] * 20), 0.0)] * 3, "drifted by 20.0%"),
    ],
)
def test_a_run_against_a_rule_does_not_count_and_says_why(repetitions: list[Repetition], reason: str) -> None:
    reasons = PairedResult(tuple(repetitions)).invalid_reasons()
    assert len(reasons) == 1 and reason in reasons[0]


def test_a_slower_machine_in_one_repetition_leaves_the_paired_ratio_alone() -> None:
    result = PairedResult((repetition(1.0, 3.0), repetition(2.0, 6.0), repetition(1.0, 3.0)))
    assert result.ratio == pytest.approx(3.0)
    assert result.share_within(3.0) == 1.0 and result.share_within(2.9) == 0.0


def test_attainment_counts_steps_against_their_own_repetition() -> None:
    one = Repetition(samples(1.0, 1.0), samples(1.4, 1.6), 0.0)
    other = Repetition(samples(2.0, 2.0), samples(2.8, 2.9), 0.0)
    assert PairedResult((one, other)).share_within(1.5) == pytest.approx(0.75)


def test_p95_is_over_all_steps() -> None:
    assert PairedResult((Repetition(samples(1.0), samples(*map(float, range(1, 101))), 0.0),)).subject_p95_s == 95.0


def test_transfers_are_medians() -> None:
    taken = tuple(StepSample(1.0, StepTransfers(num_bytes=size)) for size in (5, 7, 100))
    assert PairedResult((Repetition(taken, taken, 0.0),)).transfers("num_bytes") == 7


def test_baseline_and_subjects_take_turns() -> None:
    calls: list[str] = []

    def burst(name: str, time_s: float):
        def run(num_steps: int) -> Sequence[StepSample]:
            calls.append(f"{name}{num_steps}")
            return samples(*[time_s] * num_steps)

        return run

    first, second = measure_repetition(burst("b", 1.0), [burst("x", 2.0), burst("y", 3.0)], PairPlan(3, 2, 10))
    assert calls == ["b10", "x10", "y10"] * 2
    assert (first.baseline_s, first.subject_s, second.subject_s) == (1.0, 2.0, 3.0)
    assert len(first.baseline) == len(second.subject) == 20


@pytest.mark.parametrize(
    ("holds", "reasons", "verdict"),
    [
        (True, (), Verdict.HOLDS),
        (False, (), Verdict.FAILS),
        (True, ("noise",), Verdict.INVALID),
        (False, ("noise",), Verdict.INVALID),
    ],
)
def test_an_invalid_run_is_neither_won_nor_lost_but_told(
    holds: bool, reasons: tuple[str, ...], verdict: Verdict
) -> None:
    criterion = Criterion("A1", "it is so", holds, "1 of 1.", reasons)
    assert criterion.verdict is verdict
    assert criterion.line().startswith(f"A1: {verdict.value}: it is so. 1 of 1.")
    if reasons:
        assert f"by these numbers it {'holds' if holds else 'does not hold'}; noise" in criterion.line()


def test_a_criterion_names_the_worst_of_each_reason_once() -> None:
    results = [PairedResult((repetition(1.0, 2.0, share),)) for share in (0.08, 0.5, 0.0)]
    criterion = judge("A1", "it is so", True, "", results, is_quick=True)
    assert [reason.split(" of ")[0] for reason in criterion.reasons] == ["other processes took 50%"]
    assert "one repetition" in criterion.detail


def test_a_quick_run_needs_no_three_repetitions_a_full_one_does() -> None:
    result = PairedResult((repetition(1.0, 2.0),))
    assert judge("A1", "it is so", True, "", [result], is_quick=True).verdict is Verdict.HOLDS
    assert judge("A1", "it is so", True, "", [result], is_quick=False).verdict is Verdict.INVALID
