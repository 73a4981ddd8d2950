"""A plan as lines and tables of text, and as plain values: for whoever shows or stores it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from offload.hardware import Hardware
from offload.interval import hidden_interval
from offload.model_shape import ModelShape
from offload.plan import ClassPlan, Infeasible, OffloadPlan
from offload.plan_request import PlanRequest
from offload.plan_text import gigabytes, seconds, ways_to_fit
from offload.step_cost import StepCost
from offload.target import ClassTarget
from offload.transfer import Direction


@dataclasses.dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of text under a title."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PlanReport:
    """Everything there is to show."""

    is_feasible: bool
    heading: tuple[str, ...]
    """What was planned for what."""
    verdict: str
    tables: tuple[ReportTable, ...]
    notes: tuple[str, ...]
    """The arithmetic, or what would help."""
    values: dict[str, Any]
    """Plain values for a JSON file."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlanSubject:
    """What a plan was made of."""

    machine: str
    shape: ModelShape
    cost: StepCost
    targets: Sequence[ClassTarget]
    request: PlanRequest


def hardware_text(hardware: Hardware) -> str:
    """One line: the effective numbers that the plan counts with."""
    link = hardware.link
    return (
        f"{hardware.name}, by the built-in table: {hardware.flops / 1e12:.3g} TFLOPS, memory "
        f"{hardware.memory_bytes_per_s / 1e9:,.0f} GB/s, {link.name} {link.h2d_bytes_per_s / 1e9:.3g} GB/s, effective "
        "(within about 25 %)"
    )


def make_report(subject: PlanSubject, found: OffloadPlan | Infeasible) -> PlanReport:
    """Words and tables for what the planner found."""
    values = {
        "model": dataclasses.asdict(subject.shape),
        "machine": subject.machine,
        "request": _request_values(subject.request),
        "targets": [dataclasses.asdict(target) for target in subject.targets],
        "plan": found.to_json(),
    }
    if isinstance(found, Infeasible):
        notes = tuple(f"Option: {option}." for option in found.options)
        return PlanReport(False, _heading(subject), f"Infeasible. {found.reason}", (), notes, values)
    tables = (_class_table(subject, found), _placement_table(subject, found), _ledger_table(subject, found))
    notes = (*_shortfalls(subject, found), *(f"{c.name}: {c.explanation}." for c in found.classes))
    if found.min_streamed_layers and any(c.is_best_effort or not c.is_open for c in found.classes):
        ways = "; ".join(ways_to_fit(subject.shape, subject.request))
        notes = (*notes, f"To serve more classes in time: {ways}; or looser targets.")
    return PlanReport(True, _heading(subject), _verdict(subject.shape, found), tables, notes, values)


def _request_values(request: PlanRequest) -> dict[str, Any]:
    values = dataclasses.asdict(dataclasses.replace(request, assumed_cost=None))
    return {**values, "quantile": request.quantile.value}


def _heading(subject: PlanSubject) -> tuple[str, ...]:
    shape, request, cost = subject.shape, subject.request, subject.cost
    load = request.load
    copy_s = shape.mean_layer_bytes / cost.link_bytes_per_s(Direction.H2D, request.quantile)
    layer_s = cost.layer_s(load.decode(), request.quantile)
    chunk_s = cost.layer_s(next(iter(load.prefill())), request.quantile)
    chunk = min(load.chunk_tokens, load.prompt_tokens)
    return (
        f"{shape.name}: {gigabytes(shape.weights_bytes)} of weights ({shape.num_layers} layers of "
        f"{gigabytes(shape.mean_layer_bytes)}, {gigabytes(shape.fixed_bytes)} that always stay), KV "
        f"{shape.kv_bytes_per_token / 1024:,.0f} KiB a token",
        f"on {subject.machine}",
        f"for {load.num_sequences} {'sequence' if load.num_sequences == 1 else 'sequences'} of {load.context_tokens:,} "
        f"tokens and a prompt of {load.prompt_tokens:,}; {request.quantile.value} of times; "
        f"{request.kv_link_share:.0%} of the link kept for KV; predictions within {request.target_margin:g} x target",
        f"A layer takes {seconds(layer_s)} to compute when decoding, {seconds(chunk_s)} for {chunk:,} prompt tokens, "
        f"{seconds(copy_s)} to copy: {_share(hidden_interval(layer_s, copy_s))} streams without a trace when "
        f"decoding, {_share(hidden_interval(chunk_s, copy_s))} in prefill.",
    )


def _share(interval: int) -> str:
    return "every layer" if interval == 1 else f"one layer in {interval}"


def _verdict(shape: ModelShape, plan: OffloadPlan) -> str:
    served = [c.name for c in plan.classes if c.is_open and not c.is_best_effort]
    late = [c.name for c in plan.classes if c.is_best_effort]
    closed = [c.name for c in plan.classes if not c.is_open]
    parts = [f"In time: {', '.join(served) or 'no class'}"]
    if late:
        parts.append(f"best effort, late: {', '.join(late)}")
    if closed:
        parts.append(f"closed: {', '.join(closed)}")
    if not plan.streamed_layers:
        return f"{'; '.join(parts)}. Nothing streamed at start."
    start = plan.streamed_layers
    fewer = [c.name for c in plan.classes if c.max_streamed_layers is not None and c.max_streamed_layers < start]
    while_running = f", fewer while there are requests of {', '.join(fewer)}" if fewer else ""
    return f"{'; '.join(parts)}. {start} of {shape.num_layers} layers streamed at start{while_running}."


def _shortfalls(subject: PlanSubject, plan: OffloadPlan) -> Iterator[str]:
    """What was asked for and does not fit, although there is a plan."""
    load, request = subject.request.load, subject.request
    if plan.kv_tokens < request.kv_need_tokens:
        yield (
            f"The KV at start holds {plan.kv_tokens:,} of the {request.kv_need_tokens:,} tokens asked for: no class "
            "that is never closed bears more streaming, or the host holds no more. The times below are for all of them."
        )
    if load.prompt_tokens > plan.max_model_len:
        yield f"A prompt of {load.prompt_tokens:,} tokens is longer than max_model_len, {plan.max_model_len:,}."


def _class_table(subject: PlanSubject, plan: OffloadPlan) -> ReportTable:
    """Two rows a class, so that a terminal of 80 columns holds them."""
    prompt = subject.request.load.prompt_tokens
    rows: list[tuple[str, ...]] = []
    for c, target in zip(plan.classes, subject.targets, strict=True):
        tpot = (target.tpot_s, c.predicted_tpot_s, c.floor_tpot_s)
        ttft = (target.ttft_s(prompt), c.predicted_ttft_s, c.floor_ttft_s)
        rows.append((c.name, _state(c), "TPOT", *map(seconds, tpot), *_at_most(plan, c, subject.request.block_size)))
        rows.append(("", "", "TTFT", *map(seconds, ttft), "", ""))
    columns = ("class", "state", "", "target", "at start", "floor", "streamed at most", "KV tokens")
    return ReportTable("Latency classes", columns, tuple(rows))


def _state(c: ClassPlan) -> str:
    return "best effort" if c.is_best_effort else "open" if c.is_open else "closed"


def _at_most(plan: OffloadPlan, c: ClassPlan, block_size: int) -> tuple[str, str]:
    if c.max_streamed_layers is None:
        return f"< {plan.min_streamed_layers}", "-"
    return str(c.max_streamed_layers), f"{plan.kv_blocks_at(c.max_streamed_layers) * block_size:,}"


def _placement_table(subject: PlanSubject, plan: OffloadPlan) -> ReportTable:
    num_layers = subject.shape.num_layers
    unit = "whole layers" if plan.streamed_unit == "layer" else f"the last {plan.streamed_unit:.0%} of each"
    gained = f", {plan.kv_tokens_gained:+,} by streaming" if plan.num_slots else ""
    rows = (
        ("streamed layers", f"{plan.streamed_layers} of {num_layers} at start"),
        ("while serving", _range(plan)),
        ("of a layer", unit if plan.num_slots else "-"),
        ("slots", f"{plan.num_slots} x {gigabytes(plan.slot_bytes)}" if plan.num_slots else "none"),
        ("copied each step", gigabytes(plan.streamed_bytes)),
        ("device memory freed, net", _freed(plan)),
        ("KV at start", f"{plan.kv_tokens:,} tokens{gained}"),
        ("max_model_len in force", f"{plan.max_model_len:,} of {subject.shape.max_position_tokens:,} tokens"),
        ("host memory", gigabytes(plan.host_bytes)),
        ("decode step", f"{seconds(plan.predicted_step_s)}, of it waiting for copies {seconds(plan.exposed_s)}"),
        ("link busy", f"{plan.link_busy_share:.0%} of it"),
    )
    return ReportTable(f"Placement ({plan.strategy})", ("", ""), rows)


def _range(plan: OffloadPlan) -> str:
    least, most = plan.min_streamed_layers, plan.max_streamed_layers
    return f"{least} to {most}, by need and by class" if least < most else "as many"


def _freed(plan: OffloadPlan) -> str:
    is_ready = plan.num_slots and not plan.streamed_layers
    return gigabytes(plan.net_freed_bytes) + (" (slots, kept for when there is need)" if is_ready else "")


def _ledger_table(subject: PlanSubject, plan: OffloadPlan) -> ReportTable:
    total = subject.request.device_bytes
    rows = tuple(
        (owner.replace("_", " "), gigabytes(num_bytes), f"{num_bytes / total:.1%}")
        for owner, num_bytes in plan.ledger.items()
    )
    return ReportTable(
        "Device memory at start", ("owner", "bytes", "share"), (*rows, ("together", gigabytes(total), "100%"))
    )
