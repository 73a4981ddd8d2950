"""Nobody is starved: by a flood of a higher class, or by one client's impossible wishes."""

from __future__ import annotations

from scheduler.class_shares import SHARE_WINDOW
from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import StepKind
from scheduler.residuals import FADE_STEPS, Residuals
from scheduler.slo import SLO
from tests.promise_rig import PromiseRig
from tests.scheduler_builders import make_spec

CONFIG = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=512, admission="caps")
FLOOD_S = 0.02


def test_a_prompt_computed_in_part_is_owed_its_classs_share_under_a_flood_of_a_higher_class() -> None:
    rig, count = PromiseRig(CONFIG), 0
    low = rig.classes.get("standard")
    window_s, is_offered = SHARE_WINDOW * low.max_wait_s, False
    while rig.now_s < 2.0 * window_s and not (is_offered and rig.served["low"].is_over):
        if not is_offered and rig.now_s > 1.0:
            rig.offer(make_spec("low", 3000, 4, slo_class=low.name, arrival_s=rig.now_s))
            is_offered = True
        while count * FLOOD_S / 2 <= rig.now_s:
            count += 1
            rig.offer(make_spec(f"flood{count}", 300, 30, slo_class="interactive", arrival_s=rig.now_s))
        rig.step()
    assert rig.served["low"].is_over and len(rig.served["low"].times_s) == 4, "although the flood never ends"
    assert rig.now_s > window_s, "the flood did hold it up"


def test_what_one_client_asks_for_at_the_edge_of_the_possible_moves_nobodys_margin() -> None:
    rig = PromiseRig(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512))
    margin = rig.scheduler.stats().promises.margin
    assert margin > 0.0
    num_broken = 0
    for index in range(60):
        slo = SLO("realtime", "realtime", ttft_s=0.5)
        rig.offer(make_spec(f"r{index}", 200, 1, slo=slo, arrival_s=rig.now_s))
        rig.now_s += 0.499  # the machine stalls
        rig.run(())
        num_broken += rig.served[f"r{index}"].broken(rig.classes) is not None
    assert num_broken > 30
    assert rig.scheduler.stats().promises.margin == margin


def test_a_kind_of_step_that_is_never_seen_is_forgotten() -> None:
    slow, seen = Residuals(1.2), Residuals(1.2)
    for _ in range(64):
        slow.observe(3.0)
        seen.observe(1.0)
    assert slow.correction > 2.5
    before = slow.correction
    for _ in range(FADE_STEPS):
        slow.fade(seen.correction)
    assert slow.correction == before, "a while without is no reason"
    for _ in range(1000):
        slow.fade(seen.correction)
    slow.check()
    assert abs(slow.correction - seen.correction) < 0.01
    assert slow.p95 == 1.2, "the prior holds again"
    assert len(StepKind) == 3
