"""Published arithmetic, cell by cell: smallest hidden intervals, what a target buys, and the case of the first paper.

All margins are off: the median, no share of the link for KV, the target times 1, no fixed cost.
"""

from __future__ import annotations

import dataclasses

import pytest

from offload.hardware import HARDWARE
from offload.hardware_cost import HardwareCost
from offload.interval import hidden_interval
from offload.known_models import known_shape
from offload.model_shape import ModelShape
from offload.placement import Placement
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.step_times import ReferenceTimes, StepTimes
from offload.target import ClassTarget
from offload.transfer import Direction
from tests.smallest_interval import smallest_interval

MODELS = {
    "7B": "llama-2-7b",
    "8B": "llama-3-8b",
    "13B": "llama-2-13b",
    "34B": "codellama-34b",
    "70B": "llama-2-70b",
}
LOADS = {
    "dec B1/1k": StepLoad.decode(1, 1024),
    "dec B16/2k": StepLoad.decode(16, 2048),
    "dec B64/2k": StepLoad.decode(64, 2048),
    "pre 512": StepLoad(512, 4, 512),
    "pre 2048": StepLoad(2048, 16, 2048),
    "pre 8192": StepLoad(8192, 64, 8192),
}
SMALLEST_HIDDEN = """
a10     | 7B  | 16.2 | 19       | 9 nofit  | 4 nofit  | 7  | 2 | 1
a10     | 8B  | 17.4 | 20       | 15       | 9 nofit  | 7  | 2 | 1
a10     | 13B | 25.4 | 19 nofit | 10 nofit | -        | 7  | 2 | 1
a100-80 | 7B  | 16.2 | 60!      | 27       | 10 nofit | 18 | 5 | 2
a100-80 | 13B | 25.4 | 61!      | 31       | 12 nofit | 18 | 5 | 2
a100-80 | 34B | 55.4 | 62!      | 57!      | 45 nofit | 18 | 5 | 2
a100-80 | 70B | 68.4 | 62 nofit | 58 nofit | 48 nofit | 18 | 5 | 2
h100    | 8B  | 8.4  | 50!      | 39!      | 23       | 23 | 6 | 2
h100    | 13B | 12.2 | 49!      | 25       | 10 nofit | 23 | 6 | 2
h100    | 34B | 26.6 | 50!      | 46       | 37 nofit | 23 | 6 | 2
h100    | 70B | 32.9 | 50 nofit | 47 nofit | 39 nofit | 23 | 6 | 2
h200    | 8B  | 8.4  | 71!      | 55!      | 32       | 23 | 6 | 2
h200    | 34B | 26.6 | 71!      | 65!      | 52!      | 23 | 6 | 2
h200    | 70B | 32.9 | 71       | 66 nofit | 55 nofit | 23 | 6 | 2
"""
"""GPU, model, ms to copy a layer, then the smallest hidden interval by load. (!): more than the layers there are.
nofit: weights and KV exceed the card."""
A_TARGET_BUYS = """
a10     | 8B  | 38 | 2 (16)     | 5 (7)  | 11 (3)
a100-80 | 13B | 34 | 1 (40)     | 3 (14) | 7 (6)
a100-80 | 34B | 47 | 0          | 1 (48) | 3 (16)
h100    | 13B | 20 | 4 (10)     | 8 (5)  | 16 (3)
h100    | 34B | 28 | 1 (48)     | 3 (16) | 7 (7)
h100    | 70B | 57 | infeasible | 3 (27) | 6 (14)
"""
"""At 16 x 2k. GPU, model, ms of computing, then streamed layers (their interval) at 50, 100 and 200 ms a token."""


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


def cost_of(gpu: str, shape: ModelShape) -> HardwareCost:
    return dataclasses.replace(HardwareCost.effective(HARDWARE[gpu], shape), layer_fixed_s=0.0, step_fixed_s=0.0)


@pytest.mark.parametrize("row", rows(SMALLEST_HIDDEN), ids=lambda row: f"{row[0]}-{row[1]}")
def test_smallest_hidden_intervals(row: list[str]) -> None:
    """Integers equal in every cell.

    Chosen, where the table does not say: intervals are rounded up; two slots; K is 1,024-byte kilobytes of KV, and a
    context of "2k" is 2,048; prefill rows are sequences of 128 tokens, since the table leaves attention out and it
    hardly counts there; the card's gigabytes are 10^9 bytes; embedding and head are two matrices, of 32,000 tokens for
    70B, and must fit too.
    Milliseconds of a copy are compared within the table's own rounding of megabytes (68.4 for 1,711 MB at 25 GB/s).
    """
    gpu, model, copy_ms, *cells = row
    shape = known_shape(MODELS[model])
    cost = cost_of(gpu, shape)
    copy_s = shape.layer_bytes[0] / cost.link_bytes_per_s(Direction.H2D, Quantile.P50)
    assert copy_s * 1e3 == pytest.approx(float(copy_ms), abs=0.06)
    for (name, load), cell in zip(LOADS.items(), cells, strict=True):
        if cell == "-":
            continue
        interval = hidden_interval(cost.layer_s(load, Quantile.P50), copy_s)
        expected = int(cell.rstrip("!").split()[0])
        assert interval == expected, name
        if not load.is_decode:
            continue
        needed = shape.weights_bytes + load.num_context_tokens * shape.kv_bytes_per_token
        is_too_large = needed > HARDWARE[gpu].memory_bytes
        assert is_too_large == cell.endswith("nofit"), name
        # The table marks what does not fit before what cannot be hidden.
        assert is_too_large or (interval > shape.num_layers) == cell.endswith("!"), name


@pytest.mark.parametrize("row", rows(A_TARGET_BUYS), ids=lambda row: f"{row[0]}-{row[1]}")
def test_what_a_target_buys(row: list[str]) -> None:
    """Streamed layers and intervals equal in every cell.

    Chosen: k is rounded down, its interval N = ceil(L / k) up; milliseconds are those of the layers, without the head.
    The table counts k before the slots are paid for. In our streamer two layers that have two slots are not copied at
    all, so that the planner, with two slots, allows at least two wherever computing alone meets the target.
    """
    gpu, model, compute_ms, *cells = row
    shape = dataclasses.replace(known_shape(MODELS[model]), vocab_size=0)
    cost = cost_of(gpu, shape)
    request = PlanRequest(
        10**12,
        kv_link_share=0.0,
        target_margin=1.0,
        quantile=Quantile.P50,
        load=ReferenceLoad(num_sequences=16, context_tokens=2048),
    )
    times = StepTimes(Placement(shape, 2), ReferenceTimes(shape, cost, request))
    assert times.tpot_s(0) * 1e3 == pytest.approx(float(compute_ms), abs=0.5)
    copy_s = shape.layer_bytes[0] / cost.link_bytes_per_s(Direction.H2D, Quantile.P50)
    for tpot_s, cell in zip((0.05, 0.1, 0.2), cells, strict=True):
        target = ClassTarget("any", 1e9, 0.0, tpot_s, "refuse")
        allowed = times.last_within(target, 1.0, shape.num_layers)
        if cell == "infeasible":
            assert allowed is None
            continue
        k, _, interval = cell.rstrip(")").partition(" (")
        assert int(tpot_s / copy_s) == int(k)
        assert allowed == max(2, int(k))
        assert not interval or -(-shape.num_layers // int(k)) == int(interval)


def test_70b_on_one_h100_is_slower_than_a_second_a_token() -> None:
    """57 GB and the slots over: 35 of 80 layers at least, 1.15 s a step at least."""
    shape = known_shape("llama-3-70b")
    placement = Placement(shape, 2)
    least = next(k for k in range(81) if placement.device_bytes(k) <= 80e9)
    assert 35 <= least <= 38
    request = PlanRequest(80 * 10**9, kv_link_share=0.0, quantile=Quantile.P50)
    times = StepTimes(placement, ReferenceTimes(shape, cost_of("h100", shape), request))
    assert 1.15 <= times.tpot_s(least) <= 1.27


PREFILL = StepLoad(16 * 64, 16, 16 * 64)
"""Batch 16 of 64 tokens."""


def paper_cost(flops: float, memory: float, link: float) -> HardwareCost:
    return HardwareCost(known_shape("opt-6.7b"), flops, memory, link, link, spread=1.0)


SEED_COST = paper_cost(125e12 * 0.65, 600e9 * 0.75, 24e9)
"""The constants with which the ratios of the paper were first reconstructed: r = 3.31 and 14.06."""
TABLE_COST = cost_of("a10", known_shape("opt-6.7b"))


def ratio(cost: HardwareCost, load: StepLoad) -> float:
    copy_s = cost.shape.layer_bytes[0] / cost.link_bytes_per_s(Direction.H2D, Quantile.P50)
    return copy_s / cost.layer_s(load, Quantile.P50)


def test_ratios_of_the_paper() -> None:
    """OPT-6.7B on an A10: 3.5 in prefill, 13.8 in decode."""
    decode = StepLoad.decode(128, 64)
    assert ratio(SEED_COST, PREFILL) == pytest.approx(3.31, abs=0.03)
    assert ratio(SEED_COST, decode) == pytest.approx(14.06, abs=0.03)
    for cost in (SEED_COST, TABLE_COST):
        assert ratio(cost, PREFILL) == pytest.approx(3.5, rel=0.08)
        assert ratio(cost, decode) == pytest.approx(13.8, rel=0.05)


@pytest.mark.parametrize(
    ("load", "single", "double"),
    [
        (PREFILL, 3, 3),
        (StepLoad.decode(128, 64), 10, 9),
        (StepLoad.decode(128, 128), 9, 8),
        (StepLoad.decode(128, 192), 7, 7),
    ],
)
def test_intervals_of_the_paper(load: StepLoad, single: int, double: int) -> None:
    """At 1.5 times the latency without offload: 3 in prefill, 7 to 10 in decode (the paper: 3 and 8).

    The closed form, floor(L / i) groups and the rest resident, gives the expected numbers; the simulation, which knows
    that the copies go on during the layers of an incomplete group, may allow one less.
    """
    layer_s = SEED_COST.layer_s(load, Quantile.P50)
    copy_s = ratio(SEED_COST, load) * layer_s
    limit_s = 1.5 * 32 * layer_s
    for num_slots, expected in ((1, single), (2, double)):
        assert closed_form(32, layer_s, copy_s, num_slots, limit_s) == expected
        found = smallest_interval([layer_s] * 32, 0.0, copy_s, num_slots, limit_s)
        assert found in (expected - 1, expected)


def closed_form(num_layers: int, layer_s: float, copy_s: float, num_slots: int, limit_s: float) -> int:
    """T = floor(L / i) T_group + (L mod i) t_c."""
    for interval in range(1, num_layers + 1):
        one = layer_s + max((interval - 1) * layer_s, copy_s)
        group = one if num_slots == 1 else max(interval * layer_s, copy_s)
        if num_layers // interval * group + num_layers % interval * layer_s <= limit_s:
            return interval
    raise AssertionError("no interval meets the limit")
