"""The simulated engine: known times, known queues, and the scheduler that is served."""

from __future__ import annotations

import pytest

import engine.process
from engine.messages import AddGroup, StepOutputs
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.simulation.roofline_runner import TOKEN_ID, RooflineRunner
from engine.simulation.simulator import Simulator
from engine.simulation.step_times import StepTimes
from engine.simulation.traffic import Cancellation, draw_traffic
from engine.simulation.virtual_clock import VirtualClock
from offload.hardware import find_hardware
from offload.hardware_cost import HardwareCost
from offload.known_models import known_shape
from scheduler.config import SchedulerConfig
from scheduler.output import ScheduledRequest, SchedulerOutput
from scheduler.slo import Outcome, SLOClasses
from server.request_record import End
from server.simulated_requests import observe
from server.simulation_report import attainment
from server.slo_verdict import measure
from tests.offload_shapes import FlatCost
from tests.simulations import (
    DECODE_S,
    FIXED_S,
    HEAD_S,
    LAYER_S,
    NUM_LAYERS,
    PER_ROW_S,
    make_machine,
    mix_of,
    simulate,
)


def token_times(outputs: list[tuple[float, StepOutputs]]) -> list[float]:
    return [now_s for now_s, said in outputs for delta in said.deltas for _ in delta.token_ids]


def scheduled(request_id: str, num_tokens: int, num_computed_tokens: int, *, samples: bool) -> ScheduledRequest:
    return ScheduledRequest(request_id, num_tokens, num_computed_tokens, 0, (), samples)


def test_one_request_on_an_idle_machine_takes_the_sum_of_its_steps() -> None:
    machine = make_machine()
    (request,) = draw_traffic((mix_of("standard", 100, 4),), 1, 2.0, 0, machine.max_model_len).requests
    simulator = Simulator(machine, SchedulerConfig(max_num_batched_tokens=64), SLOClasses())
    turns = [(turn.now_s, turn.outputs) for turn in simulator.run([request])]
    # Chunks of 64 and of 36 tokens; only the second one has a row whose logits are needed.
    first_chunk_s = NUM_LAYERS * (LAYER_S + 63 * PER_ROW_S) + FIXED_S
    second_chunk_s = NUM_LAYERS * (LAYER_S + 35 * PER_ROW_S) + HEAD_S + FIXED_S
    first_s = request.arrival_s + first_chunk_s + second_chunk_s
    assert request.arrival_s > 0.0
    assert token_times(turns) == pytest.approx([first_s + index * DECODE_S for index in range(4)], rel=1e-12)
    assert turns[-1][1].deltas[0].finish_reason == "length"


def test_a_step_on_an_accelerator_is_its_roofline() -> None:
    shape = known_shape("llama-3-8b", "bfloat16")
    cost = HardwareCost.effective(find_hardware("h100"), shape)
    decode = SchedulerOutput(0, 0.0, (scheduled("a", 1, 999, samples=True),))
    parameters = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336
    kv_bytes = 1000 * 2 * 8 * 128 * 2
    layer_s = (2 * parameters + kv_bytes) / 2.6e12 + 20e-6
    head_s = 2 * 128256 * 4096 / 2.6e12
    assert StepTimes(cost, 32).step_s(decode) == pytest.approx(32 * layer_s + head_s + 1e-3, rel=1e-3)


def test_the_head_is_paid_where_a_row_samples_and_an_empty_step_is_free() -> None:
    cost = FlatCost(layer=1e-3, per_row=0.0, head=5e-3, fixed=1e-3)
    chunk = SchedulerOutput(0, 0.0, (scheduled("a", 8, 0, samples=False),))
    both = SchedulerOutput(0, 0.0, (scheduled("a", 8, 0, samples=False), scheduled("b", 1, 9, samples=True)))
    assert StepTimes(cost, 2).step_s(chunk) == pytest.approx(3e-3)
    assert StepTimes(cost, 2).step_s(both) == pytest.approx(8e-3)
    assert StepTimes(cost, 2).step_s(SchedulerOutput(0, 0.0, ())) == 0.0


def test_the_runner_samples_one_token_for_each_request_that_samples() -> None:
    clock = VirtualClock()
    runner = RooflineRunner(StepTimes(FlatCost(), 2), clock)
    for request_id in ("a", "b"):
        runner.add(Sequence(request_id, 0, (1,) * 8, SamplingParams(max_tokens=2), frozenset(), 4))
    step = SchedulerOutput(7, 0.0, (scheduled("a", 4, 0, samples=False), scheduled("b", 8, 0, samples=True)))
    computed = runner.execute(step)
    assert computed.step_id == 7
    assert [(o.request_id, o.token_id) for o in computed.outputs] == [("a", None), ("b", TOKEN_ID)]
    assert clock.now_s() == StepTimes(FlatCost(), 2).step_s(step)
    runner.remove("a")
    with pytest.raises(KeyError, match="a"):
        runner.execute(step)


def test_a_queue_of_equal_requests_waits_as_m_d_1_does() -> None:
    """Pollaczek-Khinchine: the mean wait of Poisson arrivals at one server of fixed time D is rho D / 2 (1 - rho)."""
    service_s = NUM_LAYERS * (LAYER_S + PER_ROW_S) + HEAD_S + FIXED_S
    load = 0.5
    run = simulate((mix_of("batch", 2, 1),), 3000, load / service_s, seed=3, scheduler_policy="fcfs", max_num_seqs=1)
    waits = [measure(record).ttft_s - service_s for record in run.records]
    assert min(waits) == pytest.approx(0.0, abs=1e-9)
    assert sum(waits) / len(waits) == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.08)


def test_the_scheduler_and_the_step_loop_are_the_served_ones() -> None:
    simulator = Simulator(make_machine(), SchedulerConfig(), SLOClasses())
    assert type(simulator.scheduler) is vars(engine.process)["Scheduler"]
    assert type(simulator.core) is vars(engine.process)["EngineCore"]


def test_every_invariant_holds_after_every_turn_and_nothing_is_left() -> None:
    machine = make_machine(num_blocks=40, max_model_len=400)
    mix = (mix_of("realtime", 100, 20), mix_of("batch", 200, 60))
    requests = draw_traffic(mix, 40, 60.0, 1, machine.max_model_len).requests
    simulator = Simulator(machine, SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8), SLOClasses())
    last_s = 0.0
    for turn in simulator.run(requests):
        simulator.check()
        assert turn.now_s >= last_s
        last_s = turn.now_s
    stats = simulator.scheduler.stats()
    assert stats.num_preemptions > 0, "the load was to be more than the blocks hold"
    assert simulator.core.num_live_choices == stats.num_blocks_used == 0


def test_an_idle_engine_sleeps_until_the_next_arrival() -> None:
    run = simulate((mix_of("standard", 16, 2),), 5, 0.01)
    assert run.num_turns == 5 * 2
    assert run.duration_s > run.records[-1].arrival_s > 100.0


def test_what_waits_too_long_expires_while_nothing_else_happens() -> None:
    """The engine wakes up for it, as it does when it is served: the only seat is taken for longer."""
    machine = make_machine()
    long, short = draw_traffic((mix_of("realtime", 16, 1000),), 2, 1e6, 0, machine.max_model_len).requests
    simulator = Simulator(machine, SchedulerConfig(max_num_seqs=1, admission="caps"), SLOClasses())
    expired = [(t.now_s, r) for t in simulator.run([long, short]) for r in t.outputs.refused]
    ((expired_s, refused),) = expired
    limit_s = short.arrival_s + SLOClasses().get("realtime").max_wait_s
    assert (refused.group_id, refused.reason) == (short.group_id, "expired")
    assert limit_s <= expired_s <= limit_s + 2 * DECODE_S


def test_a_request_that_never_fits_is_refused() -> None:
    request = AddGroup(
        group_id="long", prompts=((1,) * 5000,), n=1, sampling=SamplingParams(max_tokens=1),
        slo=draw_traffic((mix_of("batch", 1, 1),), 1, 1.0, 0, 10).requests[0].slo, arrival_s=0.0,
    )  # fmt: skip
    (turn,) = Simulator(make_machine(), SchedulerConfig(), SLOClasses()).run([request])
    assert [refused.reason for refused in turn.outputs.refused] == ["never_fits"]


def test_who_leaves_is_counted_apart_and_frees_its_place() -> None:
    machine = make_machine()
    traffic = draw_traffic((mix_of("standard", 16, 400),), 3, 1000.0, 0, machine.max_model_len)
    first, second, third = traffic.requests
    leaving = [Cancellation(1.0, first.group_id), Cancellation(1.5, third.group_id), Cancellation(1e3, second.group_id)]
    simulator = Simulator(machine, SchedulerConfig(max_num_seqs=1), SLOClasses())
    run = observe(traffic.requests, simulator.run(traffic.requests, leaving))
    ends = [record.end for record in run.records]
    assert ends == [End.CANCELLED, End.COMPLETED, End.CANCELLED]
    # The first one leaves after the step that runs by then; the second one has its seat from there on.
    assert run.records[0].finished_s == pytest.approx(1.0, abs=2 * DECODE_S)
    assert run.records[1].admitted_s == pytest.approx(1.0, abs=3 * DECODE_S)
    assert run.records[2].num_output_tokens == 0
    assert run.duration_s < 60.0, "nobody waits for a client to leave that has its answer"
    found = attainment(run.records, SLOClasses())
    assert (found.num_sent, found.outcomes[Outcome.CANCELLED]) == (3, 2)
    assert found.offered == found.outcomes[Outcome.MET] / 1


def test_the_clock_never_goes_back() -> None:
    clock = VirtualClock()
    clock.advance(2.0)
    clock.wait_until(1.0)
    assert clock.now_s() == 2.0
    clock.wait_until(3.0)
    assert clock.now_s() == 3.0
    for wrong in (-1e-9, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="at least 0"):
            clock.advance(wrong)
