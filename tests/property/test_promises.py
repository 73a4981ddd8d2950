"""Promises on a virtual clock: what is promised is kept, and what can be kept is not refused for ever."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import PolicyName, SchedulerConfig
from scheduler.output import RefusalReason, VerdictKind
from scheduler.request import RequestSpec
from scheduler.slo import DEFAULT_CLASSES, SLO
from tests.promise_rig import PromiseRig, draw_requests

GUARANTEED = {"realtime": 0.3, "interactive": 0.7}
ALL = {"realtime": 0.2, "interactive": 0.3, "standard": 0.35, "batch": 0.15}
POLICIES: tuple[PolicyName, ...] = ("deadline", "priority", "edf")


def make_config(policy: PolicyName = "deadline", **options: object) -> SchedulerConfig:
    values: dict[str, object] = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "scheduler_policy": policy}
    return SchedulerConfig(**(values | options))  # type: ignore[arg-type]


def reasons(rig: PromiseRig) -> set[RefusalReason]:
    return {s.verdict.reason for s in rig.served.values() if s.verdict.reason is not None}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("mix", "num_seqs"), [(GUARANTEED, 64), (GUARANTEED, 12), (ALL, 64)])
@pytest.mark.parametrize("rate_per_s", [20.0, 60.0])
def test_every_promise_is_kept_where_predictions_are_exact(
    policy: PolicyName, mix: dict[str, float], num_seqs: int, rate_per_s: float
) -> None:
    """Invariant 20, at about the capacity and at three times as much."""
    for seed in range(2):
        rig = PromiseRig(make_config(policy, max_num_seqs=num_seqs))
        rig.run(draw_requests(seed, 120, rate_per_s, mix=mix))
        assert rig.broken() == {}
        promised = len(rig.promised())
        assert promised >= 20, "it is not kept by promising nothing"
        stats = rig.scheduler.stats().promises
        assert (stats.num_kept, stats.num_broken) == (promised, 0)
        if rate_per_s > 50.0 and mix is GUARANTEED:
            assert RefusalReason.SLO_UNATTAINABLE in reasons(rig)


def test_more_is_kept_in_overload_than_without_promises() -> None:
    """At three times the capacity the caps let in what comes late; with promises, who is served is in time."""
    met = {}
    for admission in ("caps", "promise"):
        rig = PromiseRig(make_config("priority", admission=admission))
        rig.run(draw_requests(3, 200, 60.0, mix=GUARANTEED))
        met[admission] = len(rig.promised()) - len(rig.broken())
        assert (len(rig.broken()) == 0) == (admission == "promise")
    assert met["promise"] > 1.2 * met["caps"]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12_000),
    st.integers(1, 400),
    st.sampled_from(["realtime", "interactive"]),
    st.sampled_from(POLICIES),
    st.sampled_from([None, 0.02, 0.2, 1.0]),
    st.sampled_from([None, 0.005, 0.02]),
)
def test_an_idle_server_refuses_only_what_cannot_be_kept_alone(
    num_prompt_tokens: int,
    max_tokens: int,
    slo_class: str,
    policy: PolicyName,
    ttft_s: float | None,
    tpot_s: float | None,
) -> None:
    """Invariant 26's ground: a request alone is served as fast as it can be, and refused only if that is too late."""
    slo = SLO(slo_class, slo_class, ttft_s, tpot_s)
    spec = RequestSpec("a", "a", num_prompt_tokens, max_tokens, (), slo, 0.0)
    alone = PromiseRig(make_config(policy, admission="caps", egress_s=0.0))
    alone.run([(spec, None)])
    can_be_kept = alone.served["a"].broken(alone.classes) is None
    verdict = PromiseRig(make_config(policy, egress_s=0.0)).offer(spec)
    if can_be_kept:
        assert verdict.kind is VerdictKind.ADMIT
    if verdict.kind is VerdictKind.REFUSE:
        assert verdict.reason is RefusalReason.CLASS_CLOSED and verdict.retry_after_s is None


@pytest.mark.parametrize("policy", POLICIES)
def test_whoever_comes_back_when_told_is_let_in_if_nobody_else_came(policy: PolicyName) -> None:
    """Invariant 26."""
    num_refused = 0
    for seed in range(6):
        rig = PromiseRig(make_config(policy, max_num_seqs=8))
        for spec, num_output in draw_requests(seed, 40, 400.0, mix=GUARANTEED, max_tokens=(20, 200)):
            rig.now_s = max(rig.now_s, spec.arrival_s)
            verdict = rig.offer(spec, num_output)
            if verdict.reason is not RefusalReason.SLO_UNATTAINABLE:
                continue
            num_refused += 1
            assert verdict.retry_after_s is not None and 0.0 < verdict.retry_after_s <= 60.0
            assert f"retry in {verdict.retry_after_s:.3g} s" in verdict.message
            back_s = rig.now_s + verdict.retry_after_s
            while rig.now_s < back_s or rig.scheduler.has_work():
                if rig.scheduler.has_work():
                    rig.step()
                else:
                    rig.now_s = back_s
            again = dataclasses.replace(spec, request_id="again", group_id="again", arrival_s=rig.now_s)
            assert rig.offer(again, num_output).kind is VerdictKind.ADMIT
            break
    assert num_refused >= 3


def test_lengths_of_answers_that_are_not_over_change_no_verdict() -> None:
    """Invariant 28: two futures that differ in nothing but how long answers become are judged alike until one ends."""
    for seed in range(3):
        requests = draw_requests(seed, 80, 200.0, mix=GUARANTEED, max_tokens=(100, 100))
        lengths = [random.Random(seed).randint(60, 99) for _ in requests]
        verdicts = []
        for futures in (lengths, list(reversed(lengths))):
            rig = PromiseRig(make_config())
            for (spec, _), num_output in zip(requests, futures, strict=True):
                rig.now_s = max(rig.now_s, spec.arrival_s)
                rig.offer(spec, num_output)
                if not rig.num_steps % 2:
                    rig.step()
            assert all(len(s.times_s) < 60 for s in rig.served.values()), "no answer is over"
            verdicts.append([s.verdict for s in rig.served.values()])
        assert verdicts[0] == verdicts[1]
        assert any(v.kind is VerdictKind.REFUSE for v in verdicts[0])


@pytest.mark.parametrize("policy", POLICIES)
def test_the_queue_stays_within_its_caps_in_overload(policy: PolicyName) -> None:
    """Invariant 30."""
    classes = tuple(dataclasses.replace(c, queue_cap_tokens=4000) for c in DEFAULT_CLASSES)
    rig = PromiseRig(make_config(policy, max_queued_requests=20, max_num_seqs=8), classes)
    longest = 1500
    for spec, num_output in draw_requests(5, 300, 500.0, mix=ALL, max_tokens=(20, 60)):
        rig.now_s = max(rig.now_s, spec.arrival_s)
        rig.offer(spec, num_output)
        stats = rig.scheduler.stats()
        assert stats.num_running + stats.num_waiting <= 28
        queued = rig.scheduler._queue.num_tokens_by_class
        assert all(queued[c.name] <= c.queue_cap_tokens + longest for c in classes)
        book = rig.scheduler._admission._book
        assert book is not None and len(book.curve) <= stats.num_running + stats.num_waiting
        if rig.scheduler.has_work():
            rig.step()
    assert reasons(rig) & {RefusalReason.INSTANCE_FULL, RefusalReason.CLASS_QUEUE_FULL}
