"""The planner: memory, classes, objectives, and that it never gets worse where it is given more."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.model_shape import ModelShape
from offload.placement import Placement
from offload.plan import Infeasible, OffloadPlan
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.planner import plan
from offload.predict import predict_step
from offload.step_times import ReferenceTimes, StepTimes
from offload.streamed_unit import StreamedUnit
from offload.target import ClassTarget
from tests.offload_shapes import BATCH, CLASSES, INTERACTIVE, MB, REALTIME, STANDARD, FlatCost, make_shape

SHAPE = make_shape()
LAYER = SHAPE.layer_bytes[0]
WEIGHTS = SHAPE.weights_bytes
KV_2048 = 2048 * SHAPE.kv_bytes_per_token
COST = FlatCost()


def request(device_bytes: int, **options: object) -> PlanRequest:
    return dataclasses.replace(
        PlanRequest(device_bytes, kv_link_share=0.0, load=ReferenceLoad(1, 64, 64, 64)), **options
    )


def planned(
    device_bytes: int,
    targets: tuple[ClassTarget, ...] = CLASSES,
    *,
    shape: ModelShape = SHAPE,
    cost: FlatCost = COST,
    **options: object,
) -> OffloadPlan:
    made = plan(shape, cost, targets, request(device_bytes, **options))
    assert isinstance(made, OffloadPlan), made
    return made


def check(made: OffloadPlan, shape: ModelShape, device_bytes: int) -> None:
    """What holds of every plan."""
    assert sum(made.ledger.values()) == device_bytes
    assert all(num_bytes >= 0 for num_bytes in made.ledger.values())
    assert made.min_streamed_layers <= made.streamed_layers <= made.max_streamed_layers
    assert made.kv_blocks_at_start == made.kv_blocks_at(made.streamed_layers) >= 1
    assert list(made.kv_blocks_by_k) == sorted(made.kv_blocks_by_k)
    assert list(made.tpot_s_by_k) == sorted(made.tpot_s_by_k) and len(made.tpot_s_by_k) == len(made.kv_blocks_by_k)
    assert sorted(made.layer_order) == list(range(shape.num_layers))
    assert made.net_freed_bytes > 0 or made.streamed_layers == 0
    assert made.num_slots or made.max_streamed_layers == 0
    for k in range(made.min_streamed_layers, made.max_streamed_layers + 1):
        gone = sum(made.unit_bytes[layer] for layer in made.layer_order[:k])
        used = shape.weights_bytes - gone + made.num_slots * made.slot_bytes + made.kv_blocks_at(k) * made.block_bytes
        assert used <= device_bytes < used + made.block_bytes
    for c in made.classes:
        assert c.is_open or not c.is_best_effort
        assert (c.max_streamed_layers is None) == (not c.is_open or c.is_best_effort)
        assert c.floor_tpot_s <= c.predicted_tpot_s and c.floor_ttft_s <= c.predicted_ttft_s
        assert c.floor_tpot_s == made.tpot_s_at(made.min_streamed_layers)
        assert c.predicted_tpot_s == made.tpot_s_at(made.streamed_layers)
        if c.max_streamed_layers is not None:
            assert made.min_streamed_layers <= c.max_streamed_layers <= made.max_streamed_layers


def test_a_model_that_fits_streams_nothing_at_start() -> None:
    made = planned(WEIGHTS + 200 * MB)
    check(made, SHAPE, WEIGHTS + 200 * MB)
    assert made.streamed_layers == made.min_streamed_layers == made.streamed_bytes == 0
    assert all(c.is_open and not c.is_best_effort for c in made.classes)
    assert made.max_model_len == SHAPE.max_position_tokens


def test_weights_that_just_fit_with_a_request_leave_no_room_for_slots() -> None:
    made = planned(WEIGHTS + KV_2048, max_model_len=2048)
    assert (made.num_slots, made.max_streamed_layers, made.kv_tokens) == (0, 0, 2048)


def test_a_little_too_much_streams_as_little_as_holds_a_request() -> None:
    device = WEIGHTS + KV_2048 - 15 * MB
    made = planned(device)
    check(made, SHAPE, device)
    assert made.kv_tokens >= 2048
    assert made.streamed_layers == made.min_streamed_layers > 0
    fewer = planned(
        device, streamed_layers=None, num_slots=made.num_slots, may_cut_layers=made.streamed_unit != "layer"
    )
    assert fewer.streamed_layers == made.streamed_layers


def test_a_class_is_closed_where_memory_demands_more_than_its_target_allows() -> None:
    """8 of 16 layers: 84 MB a step at 1 GB/s; 19 ms of computing."""
    device = WEIGHTS + KV_2048 - 6 * LAYER
    made = planned(device, may_cut_layers=False, num_slots=2)
    check(made, SHAPE, device)
    by_name = {c.name: c for c in made.classes}
    assert made.min_streamed_layers == 8
    assert by_name["realtime"].max_streamed_layers is None and not by_name["realtime"].is_open
    assert not by_name["interactive"].is_open
    assert by_name["standard"].is_open and by_name["standard"].is_best_effort  # 84 ms
    assert by_name["batch"].max_streamed_layers == made.max_streamed_layers == 16
    assert by_name["standard"].floor_tpot_s == pytest.approx(8 * LAYER / 1e9)
    assert "the memory demands 8" in by_name["interactive"].explanation
    assert "83.9 ms > 0.97 x 50 ms" in by_name["interactive"].explanation


def test_the_largest_k_of_a_class_is_within_the_margin_and_the_next_is_not() -> None:
    made = planned(WEIGHTS + 100 * MB, may_cut_layers=False, num_slots=2)
    for c, target in zip(made.classes, CLASSES, strict=True):
        assert c.max_streamed_layers is not None
        assert step_of(c.max_streamed_layers, 2) <= 0.97 * target.tpot_s
        if c.max_streamed_layers < min(16, made.max_streamed_layers):
            assert step_of(c.max_streamed_layers + 1, 2) > 0.97 * target.tpot_s
    for k in range(made.min_streamed_layers, made.max_streamed_layers + 1):
        assert made.tpot_s_at(k) == pytest.approx(max(step_of(fewer, 2) for fewer in range(k + 1)))
    with pytest.raises(ValueError, match=f"this plan has {made.min_streamed_layers}..{made.max_streamed_layers}"):
        made.tpot_s_at(made.max_streamed_layers + 1)


def step_of(k: int, num_slots: int) -> float:
    units = Placement(SHAPE, num_slots).units(k)
    return predict_step([1e-3] * 16, 2e-3, units, num_slots, 1e9, fixed_s=1e-3).step_s


def test_ttft_bounds_a_class_too() -> None:
    """Four chunks of 64: with k streamed each takes k x 10.5 ms."""
    target = ClassTarget("quick", 0.3, 0.0, 1.0, "queue")
    load = ReferenceLoad(1, 64, 256, 64)
    made = planned(WEIGHTS + 100 * MB, (target,), load=load, may_cut_layers=False, num_slots=2)
    assert made.max_streamed_layers == int(0.97 * 0.3 / 4 / (LAYER / 1e9)) == 6


def test_kv_that_requests_need_is_what_streaming_is_for() -> None:
    device = WEIGHTS + KV_2048 + 30 * MB
    idle, busy = (
        planned(device, num_slots=2, may_cut_layers=False),
        planned(device, num_slots=2, may_cut_layers=False, kv_need_tokens=6000),
    )
    assert idle.streamed_layers < busy.streamed_layers
    assert busy.kv_tokens >= 6600  # a tenth more
    assert busy.kv_blocks_at(busy.streamed_layers - 1) * 16 < 6600
    assert busy.kv_tokens_gained == busy.kv_tokens - (device - WEIGHTS) // busy.block_bytes * 16


def test_a_need_beyond_what_any_class_bears_gives_what_there_is() -> None:
    made = planned(WEIGHTS + KV_2048, (STANDARD,), kv_need_tokens=10**6, may_cut_layers=False)
    assert made.streamed_layers == made.max_streamed_layers == made.classes[0].max_streamed_layers


def test_host_bytes_streams_as_much_as_every_class_in_time_bears() -> None:
    device = WEIGHTS + 200 * MB
    made = planned(device, (INTERACTIVE, BATCH), objective="host-bytes", may_cut_layers=False, num_slots=2)
    assert made.streamed_layers == made.classes[0].max_streamed_layers == 4  # 41.9 ms of 48.5
    check(made, SHAPE, device)


def test_the_host_memory_bounds_what_may_be_streamed() -> None:
    free = planned(WEIGHTS + 100 * MB, may_cut_layers=False, num_slots=2)
    bound = planned(WEIGHTS + 100 * MB, may_cut_layers=False, num_slots=2, host_bytes=5 * LAYER)
    assert free.max_streamed_layers == 16
    assert (bound.max_streamed_layers, bound.host_bytes) == (5, 5 * LAYER)


def test_too_little_host_memory_is_infeasible_with_the_arithmetic() -> None:
    made = plan(SHAPE, COST, CLASSES, request(WEIGHTS - 60 * MB, host_bytes=3 * LAYER))
    assert isinstance(made, Infeasible)
    assert "the host holds 31.5 MB" in made.reason
    assert any("--host-memory" in option for option in made.options)


def test_a_model_that_cannot_be_placed_is_infeasible_with_the_arithmetic() -> None:
    made = plan(SHAPE, COST, CLASSES, request(25 * MB))
    assert isinstance(made, Infeasible)
    assert "does not fit 25.0 MB" in made.reason and "20.0 MB" in made.reason
    assert any(option.startswith("quantise to 4 bits") for option in made.options)
    assert any("devices" in option for option in made.options)
    json.dumps(made.to_json())


def test_where_no_class_can_be_served_the_plan_is_infeasible_and_says_at_what_target_it_were() -> None:
    made = plan(SHAPE, COST, (REALTIME, INTERACTIVE), request(WEIGHTS + KV_2048 - 8 * LAYER))
    assert isinstance(made, Infeasible)
    assert "interactive, wants TPOT 50 ms" in made.reason and "must be streamed" in made.reason
    assert made.options[0].startswith("a looser target: TPOT of at least")
    tpot_s = float(made.options[0].split("at least ")[1].split(" ms")[0]) / 1e3
    looser = dataclasses.replace(INTERACTIVE, tpot_s=tpot_s * 1.01)
    assert isinstance(plan(SHAPE, COST, (REALTIME, looser), request(WEIGHTS + KV_2048 - 8 * LAYER)), OffloadPlan)


def test_none_needs_all_weights_on_the_device() -> None:
    assert isinstance(plan(SHAPE, COST, CLASSES, request(WEIGHTS - MB, strategy="none")), Infeasible)
    assert planned(WEIGHTS + 100 * MB, strategy="none").max_streamed_layers == 0


def test_max_model_len_is_what_the_kv_holds_where_a_class_that_is_never_closed_is_served() -> None:
    device = WEIGHTS + KV_2048 - 2 * LAYER
    made = planned(device, may_cut_layers=False, num_slots=2, shape=make_shape(max_position_tokens=10**6))
    assert made.max_streamed_layers == 16
    assert made.max_model_len == made.kv_blocks_at(16) * 16
    only_standard = planned(
        device, (REALTIME, STANDARD), may_cut_layers=False, num_slots=2, shape=make_shape(max_position_tokens=10**6)
    )
    assert only_standard.max_model_len == only_standard.kv_blocks_at(7) * 16  # 73.4 ms of 77.6


def test_a_users_own_length_is_in_force_where_it_is_less() -> None:
    assert planned(WEIGHTS + 100 * MB, max_model_len=700).max_model_len == 700


def test_where_nothing_is_in_time_the_classes_never_closed_are_best_effort_at_the_least() -> None:
    slow = FlatCost(rate=1e7)
    made = planned(WEIGHTS + KV_2048 - 4 * LAYER, cost=slow, may_cut_layers=False)
    assert [c.is_best_effort for c in made.classes] == [False, False, True, True]
    assert made.min_streamed_layers == made.max_streamed_layers == made.streamed_layers
    assert made.kv_tokens >= 2048


def test_a_part_of_every_layer_is_chosen_where_whole_layers_are_too_coarse() -> None:
    """Few large layers: one more slot of a whole one is a quarter of the model."""
    coarse = make_shape((80 * MB // 256 * 256,) * 4)
    device = coarse.weights_bytes + KV_2048 - 30 * MB
    made = planned(device, shape=coarse)
    whole = planned(device, shape=coarse, may_cut_layers=False)
    check(made, coarse, device)
    assert isinstance(made.streamed_unit, float) and whole.streamed_unit == "layer"
    assert made.predicted_step_s < whole.predicted_step_s
    assert made.unit_bytes[0] == round(made.streamed_unit * coarse.layer_bytes[0])


def test_layers_of_unequal_size_are_counted_by_their_bytes() -> None:
    uneven = make_shape(tuple((8 + 4 * (i % 3)) * 1024 * 1024 for i in range(12)))
    device = uneven.weights_bytes + KV_2048 - 25 * MB
    made = planned(device, shape=uneven)
    check(made, uneven, device)
    assert made.slot_bytes == max(made.unit_bytes)
    assert made.streamed_bytes == sum(made.unit_bytes[layer] for layer in made.streamed)


def test_a_share_of_the_link_is_left_for_kv() -> None:
    all_of_it = planned(WEIGHTS + 100 * MB, (STANDARD,), may_cut_layers=False, num_slots=2)
    shared = planned(WEIGHTS + 100 * MB, (STANDARD,), may_cut_layers=False, num_slots=2, kv_link_share=0.3)
    assert all_of_it.max_streamed_layers == 7 and shared.max_streamed_layers == int(0.0776 * 0.7e9 / LAYER) == 5


def test_plans_are_made_for_the_slow_repetitions() -> None:
    jittery = FlatCost(spread=1.3)
    made = planned(WEIGHTS + 100 * MB, (STANDARD,), cost=jittery, may_cut_layers=False, num_slots=2)
    assert made.max_streamed_layers == int(0.0776 / 1.3 * 1e9 / LAYER) == 5


def test_layers_are_slower_only_where_something_is_copied() -> None:
    """19 ms of computing; 27 beside copies."""
    cost = FlatCost(slowdown=1.5, rate=1e12)
    resident = planned(WEIGHTS + 100 * MB, cost=cost, strategy="none")
    assert resident.predicted_step_s == pytest.approx(19e-3)
    held = planned(WEIGHTS + 100 * MB, cost=cost, streamed_layers=2, num_slots=2)
    copied = planned(WEIGHTS + 100 * MB, cost=cost, streamed_layers=3, num_slots=2)
    assert held.predicted_step_s == pytest.approx(19e-3)
    assert copied.predicted_step_s == pytest.approx(27e-3)


def test_forced_k_interval_and_slots_are_obeyed() -> None:
    k = planned(WEIGHTS + 100 * MB, streamed_layers=5, num_slots=1)
    assert (k.min_streamed_layers, k.streamed_layers, k.max_streamed_layers, k.num_slots) == (5, 5, 5, 1)
    i = planned(WEIGHTS + 100 * MB, interval=5, num_slots=2)
    assert i.streamed == {4, 9, 14}
    assert planned(WEIGHTS + 100 * MB, streamed_layers=0).num_slots == 0
    with pytest.raises(ValueError, match="the model has 16 layers"):
        planned(WEIGHTS + 100 * MB, streamed_layers=17)


def test_a_plan_is_plain_values() -> None:
    made = planned(WEIGHTS + KV_2048 - 15 * MB)
    values = json.loads(json.dumps(made.to_json()))
    assert values["feasible"] is True
    assert values["streamed_layers"] == made.streamed_layers
    assert [c["name"] for c in values["classes"]] == ["realtime", "interactive", "standard", "batch"]


def test_no_k_outside_the_plan_has_blocks() -> None:
    made = planned(WEIGHTS + KV_2048 - 15 * MB)
    with pytest.raises(ValueError, match="this plan has"):
        made.kv_blocks_at(made.min_streamed_layers - 1)


def worth(made: OffloadPlan) -> tuple[float, ...]:
    met = sum(c.max_streamed_layers is not None for c in made.classes)
    held = min(2048, made.kv_blocks_at(made.min_streamed_layers) * 16)
    return held, met, min(made.kv_tokens, 3000), made.max_model_len.bit_length(), -made.classes[0].predicted_tpot_s


devices = st.integers(60, 300).map(lambda n: n * MB)
costs = st.builds(FlatCost, layer=st.floats(2e-4, 4e-3), rate=st.floats(1e8, 2e10), head=st.floats(0, 5e-3))
shapes = st.builds(
    lambda sizes, parts: make_shape(tuple(size * 256 for size in sizes), parts=parts),
    st.lists(st.integers(10_000, 40_000), min_size=2, max_size=12),
    st.sampled_from([(0.25, 0.25, 0.25, 0.25), (0.1, 0.6, 0.3), ()]),
)


@settings(max_examples=60, deadline=None)
@given(shapes, costs, devices, st.integers(0, 100).map(lambda n: n * MB), st.integers(0, 3000))
def test_more_memory_is_never_a_worse_plan(
    shape: ModelShape, cost: FlatCost, device_bytes: int, more: int, need: int
) -> None:
    less_memory, more_memory = (
        plan(shape, cost, CLASSES, request(size, kv_need_tokens=need, kv_need_margin=0.0))
        for size in (device_bytes, device_bytes + more)
    )
    if isinstance(less_memory, Infeasible):
        return
    assert isinstance(more_memory, OffloadPlan)
    check(less_memory, shape, device_bytes)
    check(more_memory, shape, device_bytes + more)
    assert worth(more_memory)[:2] >= worth(less_memory)[:2]
    if need <= 3000 and worth(more_memory)[:2] == worth(less_memory)[:2]:
        limit = max(2048, need)
        assert min(limit, more_memory.kv_tokens) >= min(limit, less_memory.kv_tokens)


@settings(max_examples=60, deadline=None)
@given(shapes, costs, st.floats(0.001, 0.5), st.floats(1.0, 4.0), st.integers(1, 3))
def test_a_looser_target_never_allows_fewer_streamed_layers(
    shape: ModelShape, cost: FlatCost, tpot_s: float, factor: float, num_slots: int
) -> None:
    times = StepTimes(Placement(shape, num_slots), ReferenceTimes(shape, cost, request(10**9)))
    tight, loose = (
        times.last_within(ClassTarget("any", 10.0, 0.0, target, "refuse"), 0.97, shape.num_layers)
        for target in (tpot_s, tpot_s * factor)
    )
    assert tight is None or (loose is not None and loose >= tight)
    if loose is not None:
        assert all(times.tpot_s(k) <= 0.97 * tpot_s * factor for k in range(loose + 1))


@settings(max_examples=40, deadline=None)
@given(shapes, costs, devices, st.floats(1.0, 3.0))
def test_a_faster_link_never_closes_a_class(
    shape: ModelShape, cost: FlatCost, device_bytes: int, factor: float
) -> None:
    slow, fast = (
        plan(shape, c, CLASSES, request(device_bytes))
        for c in (cost, dataclasses.replace(cost, rate=cost.rate * factor))
    )
    assert isinstance(slow, Infeasible) == isinstance(fast, Infeasible)
    if isinstance(slow, OffloadPlan) and isinstance(fast, OffloadPlan):
        met = [sum(c.max_streamed_layers is not None for c in made.classes) for made in (slow, fast)]
        assert met[1] >= met[0]


def test_units_are_the_ends_of_slabs() -> None:
    placement = Placement(make_shape((1024,) * 4), 1, num_parts=1)
    assert placement.units(2) == (StreamedUnit(1, 256, 768), StreamedUnit(3, 256, 768))
    assert Placement(make_shape((1024,) * 4), 1).units(1) == (StreamedUnit(3, 1024, 0),)


def test_the_most_streamed_is_what_a_class_that_is_never_closed_bears_not_one_that_may_be() -> None:
    loose = ClassTarget("loose", 600.0, 0.0, 0.4, "refuse")
    made = planned(WEIGHTS + 100 * MB, (STANDARD, loose), may_cut_layers=False, num_slots=2)
    assert made.max_streamed_layers == 7
    assert [c.max_streamed_layers for c in made.classes] == [7, 7]
    only_loose = planned(WEIGHTS + 100 * MB, (loose,), may_cut_layers=False, num_slots=2)
    assert only_loose.max_streamed_layers == 16


def test_streaming_that_does_not_pay_for_its_slots_is_not_chosen() -> None:
    """Two slots for a need of one layer's memory: three layers, or one slot and two."""
    device = WEIGHTS + KV_2048 - LAYER // 2
    assert planned(device, may_cut_layers=False, num_slots=2).streamed_layers == 3
    assert planned(device, may_cut_layers=False, num_slots=1).streamed_layers == 2
    few = make_shape((LAYER,) * 3)
    made = plan(few, COST, CLASSES, request(few.weights_bytes - MB, num_slots=3, may_cut_layers=False))
    assert isinstance(made, Infeasible)
    assert "slots 31.5 MB" in made.reason


def test_a_layout_that_was_asked_for_and_does_not_fit_is_said() -> None:
    made = plan(SHAPE, COST, CLASSES, request(WEIGHTS - 5 * LAYER, streamed_layers=2))
    assert isinstance(made, Infeasible)
    assert "52.7 MB must be streamed" in made.reason and "the slots be paid for" in made.reason
