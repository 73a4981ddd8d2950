"""The table of accelerators, the roofline over it, built-in shapes, and the value types of the planner."""

from __future__ import annotations

import dataclasses

import pytest

from offload.hardware import HARDWARE, LINKS, UnknownHardwareError, find_hardware
from offload.hardware_cost import HardwareCost
from offload.known_models import KNOWN_MODELS, UnknownModelError, known_shape
from offload.plan_request import PlanRequest, ReferenceLoad
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from offload.target import ClassTarget
from offload.transfer import Direction
from tests.offload_shapes import make_shape


@pytest.mark.parametrize("gpu", HARDWARE.values(), ids=lambda gpu: gpu.id)
def test_effective_numbers_are_within_the_peaks(gpu: object) -> None:
    assert 0.5 < gpu.flops / gpu.peak_flops < 1.0  # type: ignore[attr-defined]
    assert 0.7 < gpu.memory_bytes_per_s / gpu.peak_memory_bytes_per_s < 0.9  # type: ignore[attr-defined]
    link = gpu.link  # type: ignore[attr-defined]
    assert 0.6 < link.d2h_bytes_per_s / link.peak_bytes_per_s <= link.h2d_bytes_per_s / link.peak_bytes_per_s < 0.9


def test_ids_are_those_of_the_command_line() -> None:
    assert set(HARDWARE) == {"a10", "t4", "rtx-4090", "a100-40", "a100-80", "h100", "h200", "gh200"}
    assert set(LINKS) == {"pcie3", "pcie4", "pcie5", "c2c"}
    assert find_hardware("A10") is HARDWARE["a10"]


def test_unknown_names_are_told_with_the_list() -> None:
    with pytest.raises(UnknownHardwareError, match=r"'a100' .*a100-40, a100-80.*Did you mean"):
        find_hardware("a100")
    with pytest.raises(UnknownModelError, match=r"llama-3-8b.*Did you mean opt-13b\?"):
        known_shape("opt-12b")


@pytest.mark.parametrize(
    ("name", "layer_mb", "kv_kib", "weights_gb"),
    [
        ("llama-2-7b", 405, 512, 13.5), ("llama-3-8b", 436, 128, 16.1), ("llama-2-13b", 634, 800, 26.0),
        ("codellama-34b", 1384, 192, 67.5), ("llama-3-70b", 1711, 320, 141.1), ("opt-6.7b", 402.7, 512, 13.3),
        ("opt-13b", 629.1, 800, 25.7), ("qwen-7b", 405, 512, 15.4), ("opt-1.3b", 100.7, 192, 2.6),
        ("opt-30b", 1233, 1344, 60.0), ("opt-175b", 3624, 4608, 350.0),
    ],
)  # fmt: skip
def test_shapes_have_their_published_sizes(name: str, layer_mb: float, kv_kib: int, weights_gb: float) -> None:
    shape = known_shape(name)
    assert shape.layer_bytes[0] / 1e6 == pytest.approx(layer_mb, rel=1.5e-3)
    assert shape.kv_bytes_per_token == kv_kib * 1024
    assert shape.weights_bytes / 1e9 == pytest.approx(weights_gb, rel=0.02)


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_parts_add_up_for_every_type(name: str) -> None:
    plain = known_shape(name)
    for weight_type, share in (("float32", 2.0), ("float16", 1.0), ("int8", 17 / 32), ("int4", 10 / 32)):
        shape = known_shape(name, weight_type)  # type: ignore[arg-type]
        assert sum(shape.layer_part_bytes[0]) == shape.layer_bytes[0]
        assert shape.layer_bytes[0] == pytest.approx(plain.layer_bytes[0] * share, rel=1e-4)


def cost(**changed: float) -> StepCost:
    made = HardwareCost.effective(HARDWARE["a10"], known_shape("llama-3-8b"))
    return dataclasses.replace(made, **changed)  # type: ignore[arg-type]


def test_a_layer_is_bound_by_its_bytes_or_by_its_operations() -> None:
    shape = known_shape("llama-3-8b")
    exact = cost(layer_fixed_s=0.0)
    one = exact.layer_s(StepLoad.decode(1, 1), Quantile.P50)
    assert one == pytest.approx((shape.layer_bytes[0] + shape.kv_bytes_per_token / 32) / 480e9)
    rows = StepLoad(4096, 4096, 4096)
    matrices_s = 2 * shape.layer_parameters * 4096 / 85e12
    assert exact.layer_s(rows, Quantile.P50) == pytest.approx(matrices_s, rel=1e-2)


def test_attention_counts_where_the_context_is_long() -> None:
    """A chunk of 512 at the end of 32k: 4 T ctx heads d operations."""
    exact = cost(layer_fixed_s=0.0)
    short, long = (exact.layer_s(StepLoad(512, 1, context), Quantile.P50) for context in (512, 32_768))
    operations = 4 * 512 * 32 * 128 * ((32_768 - 255.5) - (512 - 255.5))
    assert long - short == pytest.approx(operations / 85e12, rel=1e-6)


def test_fixed_costs_quantile_and_directions() -> None:
    plain, fixed = cost(layer_fixed_s=0.0), cost(layer_fixed_s=1e-3)
    load = StepLoad.decode(4, 100)
    assert fixed.layer_s(load, Quantile.P50) - plain.layer_s(load, Quantile.P50) == pytest.approx(1e-3)
    assert plain.layer_s(load, Quantile.P95) > plain.layer_s(load, Quantile.P50)
    assert plain.link_bytes_per_s(Direction.H2D, Quantile.P95) < plain.link_bytes_per_s(Direction.H2D, Quantile.P50)
    grace = HardwareCost.effective(HARDWARE["gh200"], known_shape("llama-3-8b"))
    assert grace.link_bytes_per_s(Direction.D2H, Quantile.P50) == 295e9
    assert plain.head_s(1, Quantile.P50) == pytest.approx(128256 * 4096 * 2 / 480e9)
    assert plain.head_s(4096, Quantile.P50) == pytest.approx(2 * 128256 * 4096 * 4096 / 85e12)


def test_peak_numbers_are_faster_than_effective_ones() -> None:
    shape, load = known_shape("llama-3-8b"), StepLoad.decode(1, 512)
    peak, effective = (make(HARDWARE["a10"], shape) for make in (HardwareCost.peak, HardwareCost.effective))
    assert peak.layer_s(load, Quantile.P95) < effective.layer_s(load, Quantile.P50)


def test_a_reference_prompt_is_read_in_chunks_beside_the_others() -> None:
    load = ReferenceLoad(num_sequences=3, context_tokens=100, prompt_tokens=1000, chunk_tokens=400)
    assert list(load.prefill()) == [StepLoad(402, 3, 600), StepLoad(402, 3, 1000), StepLoad(202, 3, 1200)]
    assert load.decode() == StepLoad(3, 3, 300)
    assert load.decode().is_decode and not next(load.prefill()).is_decode


@pytest.mark.parametrize("prompt_tokens", [400, 3600, 3601, 4100, 7777, 65_536])
def test_a_long_prompt_is_sampled_and_its_sum_kept(prompt_tokens: int) -> None:
    load = ReferenceLoad(num_sequences=2, context_tokens=100, prompt_tokens=prompt_tokens, chunk_tokens=400)
    every, samples = list(load.prefill()), load.sampled_prefill()
    assert len(samples) == min(len(every), 9)
    assert sum(weight for _, weight in samples) == pytest.approx(len(every))
    for count in (lambda step: step.num_tokens, lambda step: step.num_context_tokens):
        assert sum(weight * count(step) for step, weight in samples) == pytest.approx(sum(map(count, every)))
    bent = sum(step.num_context_tokens**2 for step in every)
    assert bent <= sum(weight * step.num_context_tokens**2 for step, weight in samples) <= bent * 1.03


def test_values_out_of_bounds_are_named() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        StepLoad(1, 2, 5)
    with pytest.raises(ValueError, match="tpot_s is 0"):
        ClassTarget("x", 1.0, 0.0, 0.0, "queue")
    with pytest.raises(ValueError, match="chunk_tokens is 0"):
        ReferenceLoad(chunk_tokens=0)
    for name, value in (
        ("device_bytes", 0), ("kv_link_share", 1.0), ("target_margin", 0.0), ("num_slots", 0), ("interval", 0),
        ("assumed_link_factor", 0.0), ("max_model_len", 0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} is"):
            dataclasses.replace(PlanRequest(1), **{name: value})
    shape = make_shape()
    with pytest.raises(ValueError, match="5 parts of a layer, they have 4"):
        shape.tail_bytes(5)
    with pytest.raises(ValueError, match="add up to"):
        dataclasses.replace(shape, layer_part_bytes=((1,),) * 16)
    with pytest.raises(ValueError, match="at least one byte"):
        dataclasses.replace(shape, layer_bytes=(), layer_part_bytes=())
    with pytest.raises(ValueError, match="kv_bytes_per_token is 0"):
        dataclasses.replace(shape, kv_bytes_per_token=0)
    assert make_shape(parts=()).num_parts == 1
