"""What the simulator says of a load that was served: the same arrivals, lengths, classes and policy, on a record.

HTTP, tokenizing and the load generator take no time and no processor there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.served_load import ServedRun
from benchmarks.step_totals import StepTotals
from engine.config import EngineConfig
from engine.dtype import resolve_dtype
from engine.kv_cache import num_blocks_for
from engine.latency_fit import fit_latency
from engine.messages import AddGroup
from engine.models.weight_formats import FormatChoice
from engine.plan_model import model_in_files
from engine.record_cache import find_record, make_fingerprint
from engine.runner_factory import load_kernels, max_model_len
from engine.simulation.machine import SimulatedMachine
from engine.simulation.simulator import SimulatedTurn, Simulator
from engine.simulation.traffic import make_request
from loadgen.trace import Chunk, RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest
from offload.fingerprint import Fingerprint
from offload.record import PerformanceRecord
from offload.record_file import record_path, records_directory
from scheduler.config import SchedulerConfig
from scheduler.output import RefusalReason
from scheduler.slo import SLOClasses
from server.plan_command import find_model


def served_machine(model: str, threads: int) -> SimulatedMachine:
    """This machine by the record that a plain server of that model and so many threads has used.

    Raises:
        FileNotFoundError: there is none.
        PlanError, OffloadError: the model or the record cannot be used.
    """
    place = find_model(model)
    if place.path is None:
        raise FileNotFoundError(f"{model} is a built-in shape: give a model that is served")
    engine, scheduler = EngineConfig(model_path=str(place.path), threads=threads), SchedulerConfig()
    library = load_kernels(engine.kernels, threads, os.environ)
    try:
        fingerprint = make_fingerprint(engine, threads, library)
    finally:
        if library is not None:
            library.close()
    path = _chosen_path(records_directory(os.environ), fingerprint)
    record = find_record(path, fingerprint, scheduler, may_be_brief=True)
    dtype = resolve_dtype(engine.dtype)
    planned = model_in_files(place.path, FormatChoice(dtype, library is not None, None, engine.quantize), place.name)
    num_blocks = num_blocks_for(planned.config, planned.dtype, scheduler.block_size, engine.kv_cache_memory_bytes)
    longest = max_model_len(None, planned.config.max_position_tokens, num_blocks * scheduler.block_size)
    name = _describe(record, path)
    return SimulatedMachine(name, planned.shape, record, num_blocks, longest, fit_latency(record))


def _chosen_path(directory: Path, fingerprint: Fingerprint) -> Path:
    """A full record before a brief one, as a server chooses."""
    for is_brief in (False, True):
        path = record_path(directory, fingerprint, is_brief=is_brief)
        if path.exists():
            return path
    raise FileNotFoundError(
        f"no record {fingerprint.digest} in {directory}: a server that predicts its steps makes one"
    )


def _describe(record: PerformanceRecord, path: Path) -> str:
    measured = record.measurements
    kind = "brief" if measured.is_brief else "full"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(measured.created_unix_s))
    return f"{kind} record {path.name} of {when}, threads: {record.fingerprint.num_threads}"


def predict_run(
    machine: SimulatedMachine,
    scheduler: SchedulerConfig,
    classes: SLOClasses,
    planned: Sequence[PlannedRequest],
    window_s: float,
) -> ServedRun:
    """Simulate the requests as they were due.

    Raises:
        RepeatedStepFailure: steps fail, which no simulated step does.
    """
    requests = [
        make_request(p.index, p.slo_class, p.num_prompt_tokens, p.num_output_tokens, _due_s(p)) for p in planned
    ]
    observed = _Observed(requests, planned)
    steps = StepTotals()
    for turn in Simulator(machine, scheduler, classes, on_step=steps.observe).run(requests):
        observed.take_in(turn)
    return ServedRun(observed.traces, window_s, steps=steps)


def _due_s(planned: PlannedRequest) -> float:
    assert planned.offset_s is not None, "an open loop has a schedule"
    return planned.offset_s


class _Observed:
    """The traces of a simulation: every token is with the client at the end of its step."""

    def __init__(self, requests: Sequence[AddGroup], planned: Sequence[PlannedRequest]) -> None:
        self._by_group = {
            request.group_id: RequestTrace(
                p, request.arrival_s, request.arrival_s, num_prompt_tokens=p.num_prompt_tokens
            )
            for request, p in zip(requests, planned, strict=True)
        }

    @property
    def traces(self) -> tuple[RequestTrace, ...]:
        return tuple(self._by_group.values())

    def take_in(self, turn: SimulatedTurn) -> None:
        outputs, now_s = turn.outputs, turn.now_s
        for refused in outputs.refused:
            expired = refused.reason == RefusalReason.EXPIRED.value
            self._by_group[refused.group_id].finish(TraceEnd.EXPIRED if expired else TraceEnd.REFUSED, now_s)
        for delta in outputs.deltas:
            trace = self._by_group[delta.group_id]
            if delta.token_ids:
                trace.chunks.append(Chunk(now_s, len(delta.token_ids)))
            if delta.finish_reason is not None:
                trace.finish(TraceEnd.COMPLETED, now_s)
