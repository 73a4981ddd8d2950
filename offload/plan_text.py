"""The arithmetic of a plan in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from offload.model_shape import ModelShape
from offload.placement import Placement
from offload.plan import Infeasible
from offload.plan_request import START_TOKENS, PlanRequest
from offload.step_times import StepTimes
from offload.target import ClassTarget

_QUANTISED = (("8 bits (--quantize int8)", 34 / 32), ("4 bits (--quantize int4)", 20 / 32))
"""Bytes per parameter of what `--quantize int8` and `int4` make of a layer."""


def seconds(value_s: float) -> str:
    """With three digits that count."""
    if value_s >= 100:
        return f"{value_s:,.0f} s"
    return f"{value_s:.3g} s" if value_s >= 1 else f"{value_s * 1e3:.3g} ms"


def gigabytes(num_bytes: float) -> str:
    """In 10^9 or 10^6 bytes."""
    return f"{num_bytes / 1e9:.2f} GB" if abs(num_bytes) >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def explain_step(times: StepTimes, k: int) -> str:
    """How a decode step of the reference load comes to its time."""
    compute, step = times.computing(k), times.decode_step(k)
    layers = f"{len(compute.layer_s)} layers {seconds(sum(compute.layer_s))}"
    text = f"{layers} + head {seconds(compute.head_s)} + fixed {seconds(compute.fixed_s)}"
    num_bytes = times.placement.copied_bytes(k)
    if num_bytes == 0:
        return f"{text} = {seconds(step.step_s)}"
    rate = times.times.link_bytes_per_s
    copying = f"{gigabytes(num_bytes)} at {rate / 1e9:.3g} GB/s = {seconds(num_bytes / rate)} of copies"
    return f"{text} = {seconds(step.compute_s)} of computing beside {copying}: {seconds(step.step_s)}"


def explain_class(
    target: ClassTarget, times: StepTimes, least: int, most: int, layers: int | None, request: PlanRequest
) -> str:
    """Why a class is served in time up to that many streamed layers, or why it is not."""
    margin, prompt = request.target_margin, times.times.load.prompt_tokens
    k = least if layers is None else layers
    tpot, ttft = times.tpot_s(k), times.ttft_s(k)
    tpot_limit, ttft_limit = margin * target.tpot_s, margin * target.ttft_s(prompt)
    parts = [
        f"with {k} streamed: TPOT {_compared(tpot, tpot_limit, margin, target.tpot_s)}, "
        f"TTFT of {prompt} tokens {_compared(ttft, ttft_limit, margin, target.ttft_s(prompt))}",
        f"a step is {explain_step(times, k)}",
    ]
    if layers is None:
        held = f"the memory demands {least}" if least else "with all weights on the device"
        parts.insert(0, f"not in time: {held}")
    elif layers < most:
        parts.append(f"with {layers + 1} it would be {seconds(times.tpot_s(layers + 1))}")
    return "; ".join(parts)


def all_closed(
    shape: ModelShape, request: PlanRequest, times: StepTimes, k: int, targets: Sequence[ClassTarget]
) -> Infeasible:
    """No class meets its targets, and each is one that is then refused."""
    tpot, ttft, prompt = times.tpot_s(k), times.ttft_s(k), times.times.load.prompt_tokens
    loosest = max(targets, key=lambda target: target.tpot_s)
    placement = times.placement
    reason = (
        f"{shape.name} has {gigabytes(shape.weights_bytes)} of weights; in {gigabytes(request.device_bytes)} of device "
        f"memory at least {k} of {shape.num_layers} layers must be streamed"
        f"{'' if placement.is_whole else f' ({placement.share:.0%} of each)'}. A step is {explain_step(times, k)}. "
        f"The loosest class, {loosest.name}, wants TPOT {seconds(loosest.tpot_s)} and TTFT "
        f"{seconds(loosest.ttft_s(prompt))} for {prompt} tokens; predicted are {seconds(tpot)} and {seconds(ttft)}."
    )
    margin = request.target_margin
    looser = f"a looser target: TPOT of at least {seconds(tpot / margin)} and TTFT of at least {seconds(ttft / margin)}"
    return Infeasible(reason, (looser, *ways_to_fit(shape, request)))


def does_not_fit(shape: ModelShape, request: PlanRequest) -> Infeasible:
    """The model cannot be placed at all."""
    num_slots = min(request.slots)
    placement = Placement(shape, num_slots)
    block = shape.kv_bytes_per_token * request.block_size
    if request.strategy == "none" or request.streamed_layers == 0:
        needed = shape.weights_bytes + request.workspace_bytes + block
        what = f"all weights {gigabytes(shape.weights_bytes)}"
    else:
        needed = shape.fixed_bytes + placement.slots_bytes + request.workspace_bytes + block
        what = f"embedding, head and norms {gigabytes(shape.fixed_bytes)} + slots {gigabytes(placement.slots_bytes)}"
    arithmetic = (
        f"{what} + workspace {gigabytes(request.workspace_bytes)} + one block of KV {gigabytes(block)} = "
        f"{gigabytes(needed)}"
    )
    if needed > request.device_bytes:
        reason = f"{shape.name} does not fit {gigabytes(request.device_bytes)} of device memory: {arithmetic}."
        return Infeasible(reason, ways_to_fit(shape, request))
    over = shape.weights_bytes + request.workspace_bytes + block - request.device_bytes
    host = 0 if request.host_bytes is None else request.host_bytes
    if request.host_bytes is not None and host < over:
        reason = (
            f"{shape.name} does not fit {gigabytes(request.device_bytes)} of device memory by {gigabytes(over)}, and "
            f"the host holds {gigabytes(host)}: streaming needs that much there, and its slots besides."
        )
        more_host = f"--host-memory of at least {gigabytes(over + placement.slots_bytes + placement.slot_bytes)}"
        return Infeasible(reason, (more_host, *ways_to_fit(shape, request)))
    reason = (
        f"no layout of {shape.name} that was asked for, or that the strategy {request.strategy!r} has, fits "
        f"{gigabytes(request.device_bytes)} of device memory: {gigabytes(over)} must be streamed, and the slots be "
        "paid for."
    )
    ours = () if request.strategy == "interval" else ("--offload-strategy interval",)
    return Infeasible(reason, (*ours, *ways_to_fit(shape, request)))


def _compared(value_s: float, limit_s: float, margin: float, target_s: float) -> str:
    sign = "<=" if value_s <= limit_s else ">"
    return f"{seconds(value_s)} {sign} {margin:g} x {seconds(target_s)}"


def ways_to_fit(shape: ModelShape, request: PlanRequest) -> tuple[str, ...]:
    """What would put more of the weights, or all of them beside the KV of one request, on the device."""
    kv = min(START_TOKENS, shape.max_position_tokens) * shape.kv_bytes_per_token
    whole = shape.weights_bytes + request.workspace_bytes + kv
    options = [
        f"quantise to {name}: {gigabytes(shape.weights_bytes * per_parameter / shape.bytes_per_parameter)} of weights"
        for name, per_parameter in _QUANTISED
        if per_parameter < shape.bytes_per_parameter
    ]
    devices = math.ceil((shape.weights_bytes + kv) / max(1, request.device_bytes - request.workspace_bytes))
    if 1 < devices <= 64:
        options.append(f"{devices} such devices, a share of each layer on each")
    if shape.bytes_per_parameter >= 2.0:
        options.append("weights as the file stores them, without --dtype, where that is quantised already")
    return (*options, f"device memory of {gigabytes(whole)} to stream nothing", "a shorter --max-model-len")
