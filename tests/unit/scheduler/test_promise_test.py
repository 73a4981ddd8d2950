"""What is promised, what is refused and what its client is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from scheduler.config import SchedulerConfig
from scheduler.link import NO_LINK, ClassFloor, LinkSnapshot
from scheduler.output import RefusalReason, Verdict, VerdictKind
from scheduler.promise_test import STALE_S
from scheduler.request import RequestSpec
from scheduler.slo import SLO
from scheduler.step_features import StepFeatures
from tests.latency_builders import teach
from tests.promise_rig import PromiseRig
from tests.scheduler_builders import result_of


def make_rig(num_blocks: int = 8192, **options: Any) -> PromiseRig:
    values: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    return PromiseRig(SchedulerConfig(**(values | options)), num_blocks=num_blocks)


def make(name: str, slo_class: str, num_prompt_tokens: int, max_tokens: int = 100, **slo: Any) -> RequestSpec:
    return RequestSpec(
        name,
        name,
        num_prompt_tokens,
        max_tokens,
        (),
        SLO(slo_class, slo_class, **slo),
        0.0,
    )


def fill(rig: PromiseRig, slo_class: str, num_prompt_tokens: int, **options: Any) -> Verdict:
    """Offer equal requests until one is refused; its verdict."""
    for index in range(1000):
        spec = make(f"{slo_class}-{index:03}", slo_class, num_prompt_tokens, **options)
        verdict = rig.offer(dataclasses.replace(spec, arrival_s=rig.now_s))
        if verdict.kind is VerdictKind.REFUSE:
            return verdict
    raise AssertionError("nobody is refused")


def test_a_late_first_token_is_refused_with_the_numbers_and_the_ways_out() -> None:
    rig = make_rig()
    verdict = fill(rig, "interactive", 1500)
    assert verdict.reason is RefusalReason.SLO_UNATTAINABLE
    assert verdict.retry_after_s is not None and 0.0 < verdict.retry_after_s < 2.0
    for part in ("class 'interactive': the first token is expected after", "the target is 1.3 s", "retry in",
                 "allow more time", "another class", "x-slo-degrade: 1"):  # fmt: skip
        assert part in verdict.message
    patient = make("patient", "interactive", 1500, ttft_s=5.0)
    assert rig.offer(patient).kind is VerdictKind.ADMIT, "the way out works"


def test_a_newcomer_that_would_make_another_late_is_refused() -> None:
    rig = make_rig()
    fill(rig, "interactive", 1500)
    verdict = rig.offer(make("urgent", "realtime", 1500))
    assert verdict.reason is RefusalReason.SLO_UNATTAINABLE
    assert "with it, the first token of one accepted before would come" in verdict.message


def test_consent_makes_it_a_request_of_the_lower_class() -> None:
    rig = make_rig()
    fill(rig, "interactive", 1500)
    verdict = rig.offer(make("a", "interactive", 1500, may_degrade=True))
    assert (verdict.kind, verdict.granted) == (VerdictKind.DEGRADE, "standard")
    rig.run(())
    assert "a" not in rig.broken() and rig.served["a"].times_s, "served, and promised nothing"
    assert rig.broken() == {}


def test_a_pace_that_the_others_do_not_bear_is_refused() -> None:
    """A step of 9.5 ms and more leaves no room for many decodes where a token is due every 12 ms."""
    rig = make_rig()
    assert rig.offer(make("tight", "realtime", 16, tpot_s=0.012)).kind is VerdictKind.ADMIT
    verdict = fill(rig, "realtime", 16)
    assert verdict.reason is RefusalReason.SLO_UNATTAINABLE
    assert "ms per output token are expected" in verdict.message and "tightest target there is 12 ms" in verdict.message


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (make("a", "realtime", 16, tpot_s=0.005), "9.5 ms per output token are expected even with nothing beside it"),
        (make("a", "realtime", 4000, ttft_s=0.1), "the first token is expected 0."),
    ],
)
def test_what_cannot_be_kept_even_alone_is_not_to_be_retried(spec: RequestSpec, what: str) -> None:
    rig = make_rig()
    assert rig.offer(make("other", "batch", 16)).kind is VerdictKind.ADMIT
    for _ in range(2):  # beside others, and alone
        verdict = rig.offer(spec)
        assert (verdict.reason, verdict.retry_after_s) == (RefusalReason.CLASS_CLOSED, None)
        assert what in verdict.message and "/v1/slo" in verdict.message
        rig.run(())


def test_more_choices_than_seats_have_no_promise() -> None:
    rig = make_rig(max_num_seqs=4)
    leader = make("g/0", "realtime", 16)
    group = tuple(
        dataclasses.replace(leader, request_id=f"g/{i}", group_id="g", leader_id="g/0" if i else None) for i in range(5)
    )
    verdict = rig.scheduler.add(group, 0.0)
    assert verdict.reason is RefusalReason.CLASS_CLOSED and "5 choices" in verdict.message
    rig.scheduler.add((make("waits", "standard", 16),), 0.0)
    assert rig.scheduler.add(group, 0.0).reason is RefusalReason.CLASS_CLOSED
    assert rig.scheduler.add(group[:4], 0.0).kind is not VerdictKind.REFUSE
    verdict = rig.scheduler.add((make("h", "realtime", 16),), 0.0)
    assert verdict.reason is RefusalReason.SLO_UNATTAINABLE and "all 4 seats" in verdict.message


def test_memory_is_promised_by_what_answers_may_come_to() -> None:
    rig = make_rig(num_blocks=200)
    verdict = fill(rig, "interactive", 320, max_tokens=320)
    assert verdict.reason is RefusalReason.SLO_UNATTAINABLE and "KV blocks" in verdict.message
    assert len(rig.promised()) == 4, "40 blocks each, 198 without the watermark"
    rig.run(())
    assert rig.scheduler.stats().num_preemptions == 0 and rig.broken() == {}


def test_what_yields_takes_no_memory_from_a_promise() -> None:
    rig = make_rig(num_blocks=200, scheduler_policy="priority")
    for index in range(4):
        rig.offer(make(f"b{index}", "batch", 700, max_tokens=60))
    rig.step()
    assert rig.offer(make("a", "interactive", 320, max_tokens=320)).kind is not VerdictKind.REFUSE
    rig.run(())
    assert rig.broken() == {}


@pytest.mark.parametrize("options", [{"admission": "caps"}, {"scheduler_policy": "fcfs"}])
def test_without_promises_the_caps_alone_decide(options: dict[str, Any]) -> None:
    rig = make_rig(**options)
    verdict = fill(rig, "interactive", 1500)
    assert verdict.reason is RefusalReason.CLASS_QUEUE_FULL
    assert rig.scheduler.stats().promises.margin is None


def test_what_the_prefix_cache_holds_is_not_computed_again() -> None:
    rig = make_rig(num_blocks=4096)
    hashes = tuple(f"p{i}".encode() for i in range(8000 // 16))
    first = dataclasses.replace(make("first", "realtime", 8000, ttft_s=0.2), block_hashes=hashes)
    assert rig.offer(first).reason is RefusalReason.CLASS_CLOSED
    loose = dataclasses.replace(first, slo=SLO("realtime", "realtime", ttft_s=2.0), request_id="l", group_id="l")
    assert rig.offer(loose).kind is VerdictKind.ADMIT
    rig.run(())
    again = dataclasses.replace(first, arrival_s=rig.now_s)
    assert rig.offer(again).kind is VerdictKind.ADMIT
    assert rig.offer(dataclasses.replace(again, request_id="n", group_id="n", reads_prefix_cache=False)).reason
    rig.run(())
    assert rig.served["first"].broken(rig.classes) is None


def test_what_steps_have_taught_is_not_believed_for_ever() -> None:
    """A machine that was slow for a while does not refuse for good, since only steps could show that it recovered."""
    rig = make_rig()
    spec = make("a", "realtime", 16, tpot_s=0.012)
    model = rig.scheduler._admission._promises
    assert model is not None
    assert rig.offer(make("warm", "standard", 16, max_tokens=3)).kind is VerdictKind.ADMIT
    rig.run(())
    teach(model._model, StepFeatures(0, 1, 17, 17, 0.0, 1), 3.0, 60)
    slow = rig.offer(dataclasses.replace(spec, arrival_s=rig.now_s))
    assert slow.reason is RefusalReason.SLO_UNATTAINABLE and slow.retry_after_s == STALE_S, "the record could keep it"
    never = rig.offer(make("never", "realtime", 16, tpot_s=0.001))
    assert never.reason is RefusalReason.CLASS_CLOSED and never.retry_after_s is None
    rig.now_s += STALE_S
    assert rig.offer(dataclasses.replace(spec, arrival_s=rig.now_s)).kind is VerdictKind.ADMIT


def test_the_floor_that_blocks_may_move_to_counts_where_layers_may_be_streamed() -> None:
    """Blocks beyond the border come when they are needed, if the class bears more streamed layers."""
    rig = make_rig(num_blocks=200)
    for most, is_promised in ((0, False), (4, True)):
        floors = (ClassFloor("interactive", max_streamed_layers=most),)
        rig.scheduler.observe(LinkSnapshot(num_blocks=50, classes=floors))
        verdict = rig.offer(make("a", "interactive", 700, max_tokens=400))
        rig.offer(make(f"other{most}", "standard", 16))  # not idle
        verdict = rig.offer(make(f"b{most}", "interactive", 700, max_tokens=400))
        assert (verdict.kind is not VerdictKind.REFUSE) == is_promised
        rig.scheduler.abort(list(rig.served), rig.now_s)


def test_groups_that_wait_in_a_class_that_closes_are_refused() -> None:
    rig = make_rig(max_num_seqs=1, admission="caps")
    for name, slo_class in (("r", "realtime"), ("i", "interactive"), ("w", "realtime"), ("x", "interactive"),
                            ("s", "standard")):  # fmt: skip
        rig.offer(make(name, slo_class, 64))
    rig.step()
    floors = (
        ClassFloor("realtime", is_open=False, ttft_s=1.0, tpot_s=0.04),
        ClassFloor("interactive", tpot_s=0.04),
        ClassFloor("standard", is_best_effort=True, tpot_s=0.04),
    )
    output = rig.scheduler.schedule(rig.now_s, LinkSnapshot(classes=floors))
    assert [(e.group_id, e.reason, e.retry_after_s) for e in output.expired] == [
        ("w", RefusalReason.CLASS_CLOSED, None)
    ]
    assert "'realtime' is closed" in output.expired[0].message
    rig.scheduler.check()
    assert "r" in {s.request_id for s in output.scheduled}, "what has started runs on"
    rig.scheduler.update(output, result_of(output), rig.now_s)
    output = rig.scheduler.schedule(rig.now_s, NO_LINK)
    assert not output.expired


def test_aborted_requests_leave_room_for_others() -> None:
    rig = make_rig()
    fill(rig, "interactive", 1500)
    late = make("late", "interactive", 1500)
    assert rig.offer(late).reason is RefusalReason.SLO_UNATTAINABLE
    rig.scheduler.abort(("interactive-000", "interactive-003"), 0.0)
    assert rig.offer(late).kind is not VerdictKind.REFUSE
    rig.scheduler.check()
