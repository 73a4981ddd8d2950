"""Verdicts: what can never be served, what must wait, what finds no room."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.admission import MAX_RETRY_S, MIN_RETRY_S, AdmissionControl
from scheduler.block_pool import BlockPool
from scheduler.config import SchedulerConfig
from scheduler.link import NO_LINK, ClassFloor, LinkSnapshot
from scheduler.output import RefusalReason, Verdict, VerdictKind
from scheduler.policy import Policy
from scheduler.request import RequestSpec
from scheduler.running_set import RunningSet
from scheduler.slo import DEFAULT_CLASSES, SLO, SLOClasses
from scheduler.waiting_queue import WaitingQueue
from tests.scheduler_builders import BLOCK_SIZE, NOW_S, make_group, make_request, make_spec

NUM_BLOCKS = 10
CLASSES = SLOClasses(tuple(dataclasses.replace(c, queue_cap_tokens=100 * (c.rank + 1)) for c in DEFAULT_CLASSES))


class Desk:
    """An admission control with a queue, and everything taken but what a test frees."""

    def __init__(self, max_queued_requests: int = 4, max_model_len: int = 1000, classes: SLOClasses = CLASSES) -> None:
        config = SchedulerConfig(
            max_num_seqs=2, max_queued_requests=max_queued_requests, block_size=BLOCK_SIZE, max_num_batched_tokens=8
        )
        self.queue = WaitingQueue(lambda num_tokens: -(-num_tokens // BLOCK_SIZE), CLASSES.names, is_fair=True)
        self.running = RunningSet()
        self.pool = BlockPool(NUM_BLOCKS)
        self.taken: list[int] = []
        self.control = AdmissionControl(
            config,
            Policy(config.scheduler_policy, classes),
            max_model_len,
            watermark_blocks=1,
            queue=self.queue,
            running=self.running,
            pool=self.pool,
        )

    def wait(self, name: str, num_prompt_tokens: int, max_tokens: int, slo_class: str = "standard") -> None:
        self.queue.push(make_request(name, num_prompt_tokens, max_tokens, slo_class=slo_class))

    def judge(
        self, *group: RequestSpec, num_running: int = 2, num_free_blocks: int = 0, link: LinkSnapshot = NO_LINK
    ) -> Verdict:
        """With so many requests running, whatever they are, and so many blocks free."""
        for request in self.running:
            self.running.remove(request)
        for index in range(num_running):
            self.running.add(make_request(f"running {index}", 1, 1))
        self.pool.release(self.taken)
        self.taken = self.pool.allocate(NUM_BLOCKS - num_free_blocks)
        self.control.observe_link(link)
        return self.control.judge(group, NOW_S)


@pytest.mark.parametrize("num_prompt_tokens", [1, 20, 40])
@pytest.mark.parametrize(("num_blocks", "fits"), [(NUM_BLOCKS - 1, True), (NUM_BLOCKS, True), (NUM_BLOCKS + 1, False)])
def test_the_pool_is_the_limit_to_the_block(num_prompt_tokens: int, num_blocks: int, fits: bool) -> None:
    """The last output token is never computed: it needs no slot."""
    for num_kv_tokens in ((num_blocks - 1) * BLOCK_SIZE + 1, num_blocks * BLOCK_SIZE):
        max_tokens = num_kv_tokens - num_prompt_tokens + 1
        if max_tokens < 1:
            continue
        verdict = Desk().judge(make_spec("a", num_prompt_tokens, max_tokens))
        assert (verdict.reason is not RefusalReason.NEVER_FITS) == fits
    assert fits or (f"{NUM_BLOCKS + 1} KV blocks" in verdict.message and f"has {NUM_BLOCKS};" in verdict.message)


def test_a_prompt_alone_may_fill_the_pool() -> None:
    assert Desk().judge(make_spec("a", 40, 0)).kind is VerdictKind.QUEUE
    assert Desk().judge(make_spec("a", 40, 1)).kind is VerdictKind.QUEUE
    assert Desk().judge(make_spec("a", 41, 0)).reason is RefusalReason.NEVER_FITS


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "way_out"),
    [
        (
            25,
            10,
            "35 tokens (25 prompt + 10 output) are asked for, the context holds 30; lower max_tokens to at most 5",
        ),
        (30, 1, "shorten the prompt to at most 29 tokens"),
        (31, 0, "shorten the prompt to at most 30 tokens"),
        (29, 2, "lower max_tokens to at most 1 or shorten the prompt"),
    ],
)
def test_the_context_is_a_limit_with_a_way_out(num_prompt_tokens: int, max_tokens: int, way_out: str) -> None:
    verdict = Desk(max_model_len=30).judge(make_spec("a", num_prompt_tokens, max_tokens))
    assert verdict.reason is RefusalReason.NEVER_FITS and verdict.retry_after_s is None
    assert way_out in verdict.message


def test_following_the_way_out_of_a_small_pool_is_enough() -> None:
    refused = Desk().judge(make_spec("a", 30, 20))
    assert "lower max_tokens to at most 11 or shorten" in refused.message
    assert Desk().judge(make_spec("a", 30, 11)).reason is not RefusalReason.NEVER_FITS
    refused = Desk().judge(make_spec("a", 50, 20))
    assert "shorten the prompt to at most 40 tokens" in refused.message


def test_choices_need_not_run_together() -> None:
    assert Desk().judge(*make_group("g", 4, 36, 5)).kind is VerdictKind.QUEUE


def test_more_choices_than_the_instance_holds_never_fit() -> None:
    verdict = Desk(max_queued_requests=4).judge(*make_group("g", 7, 4, 1), num_running=0)
    assert verdict.reason is RefusalReason.NEVER_FITS
    assert "7 choices" in verdict.message and "at most 6" in verdict.message


def test_what_finds_seats_and_blocks_beside_all_that_wait_is_admitted() -> None:
    desk = Desk()
    assert desk.judge(make_spec("a", 16, 20), num_running=1, num_free_blocks=5).kind is VerdictKind.ADMIT
    assert desk.judge(make_spec("a", 16, 20), num_running=1, num_free_blocks=4).kind is VerdictKind.QUEUE, "watermark"
    assert desk.judge(make_spec("a", 16, 20), num_running=2, num_free_blocks=5).kind is VerdictKind.QUEUE
    desk.wait("b", 4, 4)
    assert desk.judge(make_spec("a", 16, 20), num_running=0, num_free_blocks=5).kind is VerdictKind.QUEUE
    assert desk.judge(make_spec("a", 16, 20), num_running=0, num_free_blocks=6).kind is VerdictKind.ADMIT


def test_a_full_instance_refuses_every_class() -> None:
    desk = Desk(max_queued_requests=2)
    desk.wait("a", 4, 1)
    assert desk.judge(make_spec("c", 4, 1, slo_class="realtime")).kind is VerdictKind.QUEUE
    desk.wait("b", 4, 1)
    verdict = desk.judge(make_spec("c", 4, 1, slo_class="realtime"))
    assert verdict.reason is RefusalReason.INSTANCE_FULL and "2 requests wait and 2 may" in verdict.message
    assert verdict.retry_after_s == MIN_RETRY_S


def test_a_class_takes_as_many_waiting_tokens_as_its_cap() -> None:
    desk = Desk()
    desk.wait("a", 30, 10, "realtime")
    assert desk.judge(make_spec("b", 20, 50 - 1, slo_class="realtime")).reason is RefusalReason.NEVER_FITS
    desk.wait("b", 40, 20, "realtime")
    assert desk.judge(make_spec("c", 30, 11, slo_class="realtime")).kind is VerdictKind.QUEUE, "outputs do not count"
    verdict = desk.judge(make_spec("c", 31, 1, slo_class="realtime"))
    assert verdict.reason is RefusalReason.CLASS_QUEUE_FULL
    assert "70 prompt tokens waiting and takes 100" in verdict.message and "31" in verdict.message
    assert desk.judge(make_spec("c", 31, 1)).kind is VerdictKind.QUEUE, "another class has room"


def test_the_only_one_of_its_class_is_never_refused_for_the_cap() -> None:
    spec = dataclasses.replace(CLASSES.get("realtime"), queue_cap_tokens=1)
    desk = Desk(classes=SLOClasses((spec, *[c for c in CLASSES if c.name != "realtime"])))
    desk.wait("other", 10, 10, "batch")
    assert desk.judge(make_spec("a", 20, 10, slo_class="realtime")).kind is VerdictKind.QUEUE
    desk.wait("a", 20, 10, "realtime")
    assert desk.judge(make_spec("b", 1, 1, slo_class="realtime")).reason is RefusalReason.CLASS_QUEUE_FULL


def test_a_full_class_degrades_with_consent_only() -> None:
    desk = Desk(max_queued_requests=9)
    classes = {"slo_class": "interactive"}
    for name in ("a", "b", "c", "d", "e"):
        desk.wait(name, 40, 1, **classes)
    spec = make_spec("f", 40, 1, **classes)
    consenting = dataclasses.replace(spec, slo=SLO("interactive", "interactive", may_degrade=True))
    assert desk.judge(spec).reason is RefusalReason.CLASS_QUEUE_FULL
    verdict = desk.judge(consenting)
    assert (verdict.kind, verdict.granted) == (VerdictKind.DEGRADE, "standard")


@pytest.mark.parametrize(
    ("tokens_per_s", "expected_s"), [(0.0, MIN_RETRY_S), (4.0, 29.25), (1000.0, MIN_RETRY_S), (0.01, MAX_RETRY_S)]
)
def test_retry_after_is_the_time_to_work_off_what_waits_ahead(tokens_per_s: float, expected_s: float) -> None:
    desk = Desk(max_queued_requests=9)
    for name in ("a", "b", "c"):
        desk.wait(name, 39, 1, "realtime")
    desk.wait("behind", 39, 1, "batch")
    for _ in range(3):
        desk.control.observe_step(round(tokens_per_s * 100), 100.0)
    verdict = desk.judge(make_spec("d", 10, 1, slo_class="realtime"))
    assert verdict.reason is RefusalReason.CLASS_QUEUE_FULL
    assert verdict.retry_after_s == pytest.approx(expected_s)


def closed(*names: str, best_effort: str = "standard") -> LinkSnapshot:
    floors = [ClassFloor(name, is_open=False, ttft_s=2.0, tpot_s=0.084) for name in names]
    return LinkSnapshot(classes=(*floors, ClassFloor(best_effort, is_best_effort=True, tpot_s=0.084)))


def test_a_closed_class_is_refused_with_its_floor_and_not_to_be_retried() -> None:
    verdict = Desk().judge(
        make_spec("a", 4, 4, slo=SLO("realtime", "realtime")), num_free_blocks=9, link=closed("realtime")
    )
    assert verdict.kind is VerdictKind.REFUSE
    assert verdict.reason is RefusalReason.CLASS_CLOSED
    assert verdict.retry_after_s is None
    for part in ("'realtime' is closed", "84 ms", "targets 30 ms", "another class"):
        assert part in verdict.message


@pytest.mark.parametrize("consents", [True, False])
def test_a_closed_class_degrades_by_consent(consents: bool) -> None:
    spec = make_spec("a", 4, 4, slo=SLO("interactive", "interactive", may_degrade=consents))
    verdict = Desk().judge(spec, num_free_blocks=9, link=closed("realtime", "interactive"))
    if consents:
        assert (verdict.kind, verdict.granted) == (VerdictKind.DEGRADE, "standard")
    else:
        assert verdict.reason is RefusalReason.CLASS_CLOSED
        assert "x-slo-degrade" in verdict.message


def test_a_closed_class_does_not_degrade_to_a_closed_one() -> None:
    spec = make_spec("a", 4, 4, slo=SLO("interactive", "interactive", may_degrade=True))
    verdict = Desk().judge(spec, num_free_blocks=9, link=closed("interactive", "standard"))
    assert verdict.reason is RefusalReason.CLASS_CLOSED


def test_nobody_is_degraded_to_a_class_that_is_closed_for_its_own_target() -> None:
    classes = SLOClasses(tuple(dataclasses.replace(c, when_infeasible="degrade") for c in CLASSES))
    floors = (ClassFloor("interactive", is_open=False, tpot_s=0.07), ClassFloor("standard", tpot_s=0.07))
    for tpot_s, kind in ((0.06, VerdictKind.REFUSE), (None, VerdictKind.DEGRADE)):
        spec = make_spec("a", 4, 4, slo=SLO("interactive", "interactive", tpot_s=tpot_s, may_degrade=True))
        link = LinkSnapshot(classes=floors)
        assert Desk(classes=classes).judge(spec, num_running=0, num_free_blocks=9, link=link).kind is kind


def test_a_class_of_best_effort_is_served() -> None:
    verdict = Desk().judge(make_spec("a", 4, 4), num_running=0, num_free_blocks=9, link=closed("realtime"))
    assert verdict.kind is VerdictKind.ADMIT


@pytest.mark.parametrize(
    ("slo_class", "tpot_s", "is_served"),
    [
        ("interactive", 0.09, True),  # closed for its own 50 ms, not for what this request asks
        ("interactive", 0.084, True),
        ("interactive", 0.06, False),
        ("realtime", 0.09, False),  # the first token is late all the same
        ("standard", 0.01, True),  # never refused for expected lateness
    ],
)
def test_a_target_of_its_own_is_what_a_request_is_judged_by(slo_class: str, tpot_s: float, is_served: bool) -> None:
    floors = (
        ClassFloor("realtime", is_open=False, ttft_s=0.9, tpot_s=0.084),
        ClassFloor("interactive", is_open=False, ttft_s=0.9, tpot_s=0.084),
        ClassFloor("standard", is_best_effort=True, ttft_s=0.9, tpot_s=0.084),
    )
    spec = make_spec("a", 4, 4, slo=SLO(slo_class, slo_class, tpot_s=tpot_s))
    verdict = Desk().judge(spec, num_running=0, num_free_blocks=9, link=LinkSnapshot(classes=floors))
    if is_served:
        assert verdict.kind is VerdictKind.ADMIT
    else:
        assert verdict.reason is RefusalReason.CLASS_CLOSED
        assert f"{tpot_s * 1000:g} ms per output token cannot be met" in verdict.message
        assert "at least 84 ms" in verdict.message


def test_an_open_class_does_not_promise_more_than_the_floor() -> None:
    link = LinkSnapshot(classes=(ClassFloor("realtime", ttft_s=0.1, tpot_s=0.02),))
    strict, loose = (make_spec("a", 4, 4, slo=SLO("realtime", "realtime", tpot_s=t)) for t in (0.01, 0.02))
    assert Desk().judge(strict, num_running=0, num_free_blocks=9, link=link).reason is RefusalReason.CLASS_CLOSED
    assert Desk().judge(loose, num_running=0, num_free_blocks=9, link=link).kind is VerdictKind.ADMIT
