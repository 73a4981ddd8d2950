"""What the step loop asks of streamed weights: nothing where there are none, a verdict where a class is closed."""

from __future__ import annotations

import pytest

from engine.core import EngineCore
from engine.messages import AddGroup, SLORequest, StepOutputs
from engine.offload_manager import NoOffload
from engine.sampling_params import SamplingParams
from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, TransferResult
from scheduler.link import NO_LINK, ClassFloor, LinkSnapshot
from scheduler.output import FinishedRequest, SchedulerOutput, StepResult
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses
from tests.fakes import CRASH_TOKEN_ID, EOS_TOKEN_ID, FakeRunner, HandClock
from tests.scripted_offload import ScriptedOffload

NUM_BLOCKS = 16
PROMPT = tuple(range(20, 33))
CLOSED = ClassFloor("interactive", is_open=False, ttft_s=2.0, tpot_s=0.084)
LATE = ClassFloor("standard", is_best_effort=True, ttft_s=2.0, tpot_s=0.084)


def make_core(offload: NoOffload) -> EngineCore:
    config = SchedulerConfig(block_size=4, max_num_batched_tokens=32, max_num_seqs=4)
    runner = FakeRunner(NUM_BLOCKS, config.block_size, config.max_num_seqs)
    scheduler = Scheduler(config, SLOClasses(), NUM_BLOCKS, 64)
    return EngineCore(
        scheduler, runner, HandClock(tick_s=1e-3), block_size=4, eos_token_ids=frozenset({EOS_TOKEN_ID}),
        offload=offload,
    )  # fmt: skip


def ask(slo_class: str, may_degrade: bool = False, prompt: tuple[int, ...] = PROMPT) -> AddGroup:
    return AddGroup(
        group_id=f"{slo_class} {may_degrade}",
        prompts=(prompt,),
        n=1,
        sampling=SamplingParams(max_tokens=3),
        slo=SLORequest(requested=slo_class, granted=slo_class, may_degrade=may_degrade),
        arrival_s=1000.0,
    )


def turn(core: EngineCore, *groups: AddGroup) -> StepOutputs:
    outputs = core.turn(groups)
    core.check()
    return outputs


def test_without_streaming_nothing_is_known_and_nothing_waits() -> None:
    manager = NoOffload()
    assert manager.snapshot() is NO_LINK
    assert manager.wakeup_s() is None
    assert manager.stats() is None
    assert manager.kv_bytes() is None
    assert manager.collect() == () and not manager.has_results()
    manager.call_on_results(lambda: None)
    manager.verify()
    manager.close()
    core = make_core(manager)
    outputs = turn(core, ask("realtime"))
    assert outputs.stats.offload is None
    assert outputs.stats.num_blocks == NUM_BLOCKS
    assert not outputs.admitted[0].is_best_effort


@pytest.mark.parametrize("consents", [True, False])
def test_a_closed_class_is_refused_by_the_engine_or_degraded_by_consent(consents: bool) -> None:
    core = make_core(ScriptedOffload(LinkSnapshot(classes=(CLOSED, LATE))))
    outputs = turn(core, ask("interactive", consents))
    if consents:
        (admitted,) = outputs.admitted
        assert (admitted.granted, admitted.is_best_effort) == ("standard", True)
        assert not outputs.refused
        return
    (refused,) = outputs.refused
    assert (refused.reason, refused.retry_after_s) == ("slo_infeasible", None)
    assert "84 ms per output token" in refused.message
    assert core.num_live_choices == 0


def test_what_runs_when_its_class_closes_runs_on() -> None:
    """Its promise was given; only what comes later is refused."""
    open_, closed = LinkSnapshot(), LinkSnapshot(classes=(CLOSED,))
    core = make_core(ScriptedOffload(open_, closed))
    assert [admitted.granted for admitted in turn(core, ask("interactive")).admitted] == ["interactive"]
    assert [refused.reason for refused in turn(core, ask("interactive", True)).refused] == []
    finished = [delta.finish_reason for _ in range(6) for delta in turn(core).deltas if delta.finish_reason]
    assert finished == ["length", "length"]


def test_what_waits_when_its_class_closes_is_refused_as_a_closed_class() -> None:
    core = make_core(ScriptedOffload(LinkSnapshot(), LinkSnapshot(classes=(CLOSED,))))
    long = AddGroup(
        group_id="fills the pool",
        prompts=(tuple(range(20, 76)),),
        n=1,
        sampling=SamplingParams(max_tokens=8),
        slo=SLORequest(requested="realtime", granted="realtime"),
        arrival_s=1000.0,
    )
    assert not turn(core, long, ask("interactive")).refused
    (refused,) = turn(core).refused
    assert (refused.group_id, refused.reason, refused.retry_after_s) == ("interactive False", "slo_infeasible", None)
    assert "'interactive' is closed" in refused.message
    assert core.num_live_choices == 1


def test_blocks_beyond_the_border_go_to_nobody() -> None:
    """13 tokens are 4 blocks of 4; of 16 blocks 5 may be handed out."""
    core = make_core(ScriptedOffload(LinkSnapshot(num_blocks=5)))
    outputs = turn(core, ask("standard"), ask("batch"))
    assert [admitted.group_id for admitted in outputs.admitted] == ["standard False"]
    assert outputs.stats.num_blocks == 5


@pytest.mark.parametrize("token", [PROMPT[0], CRASH_TOKEN_ID])
def test_every_step_that_begins_ends_whatever_becomes_of_it(token: int) -> None:
    offload = ScriptedOffload(NO_LINK)
    core = make_core(offload)
    turn(core, ask("standard", prompt=(token, *PROMPT)))
    assert offload.calls == ["begin", "end"]
    while core.num_live_choices:
        turn(core)
    assert offload.calls[-1] == "end"
    turn(core)
    assert offload.calls[-2:] == ["end", "begin"], "nothing computes: memory may move, no step is under way"


def test_a_loop_with_something_to_collect_takes_a_turn_at_once() -> None:
    """Nobody is there; a copy that has ended is taken in, and after that the loop sleeps."""
    offload = ScriptedOffload(NO_LINK)
    core = make_core(offload)
    assert core.wait_s() is None
    offload.results = [TransferResult(7, (BlockOutcome.DONE,))]
    assert core.wait_s() == 0.0


def test_a_void_request_gets_no_token_and_starts_again_in_the_runner() -> None:
    """As if a load under its first step had failed: `update` is told, and what the step sampled is no output."""
    offload = ScriptedOffload(NO_LINK)
    core = make_core(offload)
    told: list[StepResult] = []

    def noted(_output: SchedulerOutput, result: StepResult, _now_s: float) -> tuple[FinishedRequest, ...]:
        told.append(result)
        return ()

    core._scheduler.update = noted  # type: ignore[method-assign]
    offload.void = frozenset({"standard False/0"})
    outputs = core.turn([ask("standard"), ask("batch")])
    assert [delta.group_id for delta in outputs.deltas] == ["batch False"]
    void, whole = told[0].results
    assert (void.request_id, void.num_sampled, void.finish_reason, void.new_block_hashes) == (
        "standard False/0", 0, None, (),
    )  # fmt: skip
    assert whole.num_sampled == 1
    assert not core._choices["standard False/0"].is_in_runner
    assert core._choices["standard False/0"].sequence.num_output_tokens == 0
    assert core._choices["batch False/0"].is_in_runner
