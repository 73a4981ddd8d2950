"""The outcome of a request by the definitions: each limit and its boundary, several misses, several choices."""

from __future__ import annotations

import pytest

from engine.messages import GroupAdmitted
from scheduler.slo import SLO, Outcome, SLOClasses
from server.request_record import End, RequestRecord
from server.slo_headers import granted_tier, promise_headers
from server.slo_verdict import judge, measure, promise_kept, requested_targets

CLASSES = SLOClasses()
INTERACTIVE = SLO("interactive", "interactive")
"""1 s + 0.2 s per 1k tokens, 50 ms, longest stall 500 ms."""


def _record(
    slo: SLO = INTERACTIVE,
    num_choices: int = 1,
    *,
    granted: str | None = None,
    ttft_s: float = 1.0,
    tpot_s: float = 0.05,
) -> RequestRecord:
    """A request that arrived at 0 and was admitted at 0.25; powers of two keep the sums exact."""
    record = RequestRecord("r", slo, 0.0, num_choices)
    record.num_prompt_tokens = 100
    admitted = GroupAdmitted(
        group_id="g", granted=granted or slo.granted, num_cached_tokens=0, ttft_target_s=ttft_s, tpot_target_s=tpot_s
    )
    record.admitted(admitted, 0.25)
    return record


def _complete(record: RequestRecord, *choices: list[float], now_s: float | None = None) -> RequestRecord:
    for choice, times in enumerate(choices):
        for time_s in times:
            record.token(choice, time_s)
        record.choice_finished(choice, "stop")
    record.finish(End.COMPLETED, max((t for times in choices for t in times), default=0.5) if now_s is None else now_s)
    return record


def test_a_request_within_all_limits_is_met() -> None:
    record = _complete(_record(), [0.5, 0.53125, 0.5625])
    assert judge(record, CLASSES) is Outcome.MET
    assert promise_kept(record, CLASSES) is True
    measured = measure(record)
    assert (measured.ttft_s, measured.tpot_s, measured.max_gap_s, measured.e2e_s) == (0.5, 0.03125, 0.03125, 0.5625)


def test_a_target_met_exactly_is_met_and_a_hair_more_is_late() -> None:
    assert judge(_complete(_record(), [1.0]), CLASSES) is Outcome.MET
    assert judge(_complete(_record(), [1.0000001]), CLASSES) is Outcome.LATE_TTFT
    assert judge(_complete(_record(tpot_s=0.0625), [0.5, 0.5625]), CLASSES) is Outcome.MET
    assert judge(_complete(_record(tpot_s=0.0625), [0.5, 0.5626]), CLASSES) is Outcome.LATE_TPOT


def test_ttft_is_judged_by_the_target_told_at_admission() -> None:
    assert judge(_complete(_record(ttft_s=0.4), [0.5]), CLASSES) is Outcome.LATE_TTFT
    assert judge(_complete(_record(ttft_s=3.0), [2.5]), CLASSES) is Outcome.MET


def test_tpot_of_a_single_token_is_undefined_and_never_late() -> None:
    record = _complete(_record(tpot_s=1e-9), [0.5])
    assert measure(record).tpot_s is None
    assert judge(record, CLASSES) is Outcome.MET


def test_tpot_is_a_mean_so_one_slow_gap_below_the_stall_limit_does_not_miss_it() -> None:
    assert judge(_complete(_record(), [0.5, *(0.8 + 0.01 * i for i in range(20))]), CLASSES) is Outcome.MET


def test_the_longest_gap_above_the_limit_is_a_stall_even_where_the_mean_is_fine() -> None:
    times = [0.5, *(1.125 + 0.001 * i for i in range(100))]
    record = _complete(_record(), times)
    measured = measure(record)
    assert measured.tpot_s is not None and measured.tpot_s < 0.05
    assert judge(record, CLASSES) is Outcome.LATE_STALL


def test_a_class_without_a_stall_limit_does_not_judge_stalls() -> None:
    record = _complete(_record(SLO("batch", "batch"), tpot_s=0.4), [0.5, *(30.0 + 0.001 * i for i in range(100))])
    assert judge(record, CLASSES) is Outcome.MET


def test_a_clients_slower_pace_raises_the_stall_limit() -> None:
    slo = SLO("interactive", "interactive", tpot_s=2.0)
    assert judge(_complete(_record(slo, tpot_s=2.0), [0.5, 2.0, 3.5]), CLASSES) is Outcome.MET


def test_the_end_to_end_deadline_counts_to_the_last_token() -> None:
    slo = SLO("interactive", "interactive", e2e_deadline_s=0.53125)
    assert judge(_complete(_record(slo), [0.5, 0.53125], now_s=9.0), CLASSES) is Outcome.MET
    assert judge(_complete(_record(slo), [0.5, 0.5313]), CLASSES) is Outcome.LATE_E2E


def test_of_several_misses_the_first_in_order_is_the_outcome() -> None:
    slo = SLO("interactive", "interactive", e2e_deadline_s=0.75)
    assert judge(_complete(_record(slo), [1.5, 3.0, 4.5]), CLASSES) is Outcome.LATE_TTFT
    assert judge(_complete(_record(slo), [0.5, 2.0, 3.5]), CLASSES) is Outcome.LATE_E2E
    assert judge(_complete(_record(), [0.5, 2.0, 3.5]), CLASSES) is Outcome.LATE_TPOT


@pytest.mark.parametrize(
    ("slow", "outcome"),
    [
        ([1.5, 1.53125], Outcome.LATE_TTFT),
        ([0.5, 0.625], Outcome.LATE_TPOT),
        ([0.5, *(1.125 + 0.001 * i for i in range(100))], Outcome.LATE_STALL),
    ],
)
def test_the_worst_choice_decides(slow: list[float], outcome: Outcome) -> None:
    good = [0.5, 0.53125, 0.5625]
    assert judge(_complete(_record(num_choices=3), good, slow, good), CLASSES) is outcome
    assert judge(_complete(_record(num_choices=3), good, good, good), CLASSES) is Outcome.MET


def test_a_choice_without_tokens_is_timed_to_the_end() -> None:
    assert judge(_complete(_record(), [], now_s=0.75), CLASSES) is Outcome.MET
    assert judge(_complete(_record(), [], now_s=1.25), CLASSES) is Outcome.LATE_TTFT


def test_a_chunk_of_several_tokens_counts_each_in_tpot_and_its_whole_gap_as_a_stall() -> None:
    record = _record()
    record.token(0, 0.5)
    record.token(0, 0.75, n=8)
    record.finish(End.COMPLETED, 0.75)
    measured = measure(record)
    assert (measured.tpot_s, measured.max_gap_s) == (0.03125, 0.25)


@pytest.mark.parametrize("end", [End.REFUSED, End.EXPIRED, End.FAILED])
def test_an_early_end_is_its_own_outcome_however_late(end: End) -> None:
    record = RequestRecord("r", INTERACTIVE, 0.0, 1)
    record.finish(end, 99.0, "why")
    assert judge(record, CLASSES).value == end.value
    assert promise_kept(record, CLASSES) is None


def test_a_failure_after_admission_breaks_the_promise() -> None:
    record = _record()
    record.token(0, 0.5)
    record.finish(End.FAILED, 0.6)
    assert judge(record, CLASSES) is Outcome.FAILED
    assert promise_kept(record, CLASSES) is False


class TestCancelled:
    def test_in_time_is_neither_met_nor_missed(self) -> None:
        record = _record()
        record.token(0, 0.5)
        record.token(0, 0.53125)
        record.finish(End.CANCELLED, 0.5625)
        assert judge(record, CLASSES) is Outcome.CANCELLED
        assert promise_kept(record, CLASSES) is None

    def test_before_the_first_token_was_due(self) -> None:
        record = RequestRecord("r", INTERACTIVE, 0.0, 1)
        record.num_prompt_tokens = 1000
        record.finish(End.CANCELLED, 1.1)
        assert requested_targets(record, CLASSES).ttft_s == pytest.approx(1.2)
        assert judge(record, CLASSES) is Outcome.CANCELLED

    def test_after_the_first_token_was_due_is_late(self) -> None:
        record = RequestRecord("r", INTERACTIVE, 0.0, 1)
        record.num_prompt_tokens = 1000
        record.finish(End.CANCELLED, 1.3)
        assert judge(record, CLASSES) is Outcome.LATE_TTFT
        assert promise_kept(record, CLASSES) is None

    def test_while_the_next_token_is_overdue_is_late(self) -> None:
        record = _record()
        record.token(0, 0.5)
        record.finish(End.CANCELLED, 0.625)
        assert judge(record, CLASSES) is Outcome.LATE_TPOT
        assert promise_kept(record, CLASSES) is False

    def test_after_a_late_token_stays_late(self) -> None:
        record = _record()
        record.token(0, 0.5)
        record.token(0, 0.5625)
        record.finish(End.CANCELLED, 0.5625)
        assert judge(record, CLASSES) is Outcome.LATE_TPOT

    def test_in_a_stall_is_late(self) -> None:
        record = _record()
        for i in range(100):
            record.token(0, 0.5 + i / 1024)
        record.finish(End.CANCELLED, 1.25)
        assert judge(record, CLASSES) is Outcome.LATE_STALL

    def test_a_finished_choice_owes_nothing_more(self) -> None:
        record = _record()
        record.token(0, 0.5)
        record.choice_finished(0, "stop")
        record.finish(End.CANCELLED, 60.0)
        assert judge(record, CLASSES) is Outcome.CANCELLED

    def test_past_the_end_to_end_deadline_is_late(self) -> None:
        record = _record(SLO("interactive", "interactive", e2e_deadline_s=0.75))
        for i in range(10):
            record.token(0, 0.5 + i / 32)
        record.finish(End.CANCELLED, 0.8125)
        assert judge(record, CLASSES) is Outcome.LATE_E2E


class TestDegraded:
    def test_the_class_asked_for_judges_the_outcome_and_the_granted_one_the_promise(self) -> None:
        record = _complete(_record(granted="standard", ttft_s=3.03, tpot_s=0.08), [2.0, 2.0625])
        assert judge(record, CLASSES) is Outcome.LATE_TTFT
        assert promise_kept(record, CLASSES) is True

    def test_targets_of_the_class_asked_for_count_uncached_tokens_alone(self) -> None:
        record = _record(granted="standard", ttft_s=3.03, tpot_s=0.08)
        record.num_prompt_tokens, record.num_cached_tokens = 2000, 1000
        assert requested_targets(record, CLASSES).ttft_s == pytest.approx(1.2)

    def test_the_clients_own_targets_stay_in_force(self) -> None:
        slo = SLO("interactive", "interactive", ttft_s=2.5, tpot_s=0.07)
        record = _complete(_record(slo, granted="standard", ttft_s=3.0, tpot_s=0.08), [2.0, 2.0625])
        assert judge(record, CLASSES) is Outcome.MET

    def test_headers_and_tier_tell_the_granted_class(self) -> None:
        record = _record(granted="standard", ttft_s=3.03, tpot_s=0.08)
        assert promise_headers(record, CLASSES) == {
            "x-slo-class": "interactive",
            "x-slo-granted": "standard",
            "x-slo-ttft-target-ms": "3030",
            "x-slo-tpot-target-ms": "80",
            "x-slo-max-stall-ms": "2000",
        }
        assert granted_tier(record, CLASSES) == "default"


def test_headers_of_a_class_without_a_stall_limit_have_none() -> None:
    record = _record(SLO("batch", "batch"), ttft_s=600.0, tpot_s=0.4)
    assert "x-slo-max-stall-ms" not in promise_headers(record, CLASSES)
    assert granted_tier(record, CLASSES) == "flex"


def test_a_record_ends_once_and_its_first_admission_counts() -> None:
    record = _record()
    again = GroupAdmitted(group_id="g", granted="batch", num_cached_tokens=64, ttft_target_s=9.0, tpot_target_s=9.0)
    record.admitted(again, 0.5)
    assert (record.granted, record.admitted_s, record.ttft_target_s) == ("interactive", 0.25, 1.0)
    assert record.finish(End.CANCELLED, 0.3)
    assert not record.finish(End.FAILED, 0.4, "late")
    assert (record.end, record.finished_s, record.reason) == (End.CANCELLED, 0.3, None)


def test_a_record_needs_a_choice() -> None:
    with pytest.raises(ValueError, match="num_choices is 0, it must be at least 1"):
        RequestRecord("r", INTERACTIVE, 0.0, 0)
