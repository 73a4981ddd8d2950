"""Error of predicted step times on real steps: a record's fit as it is, and as it is corrected step by step.

    python -m benchmarks.latency_error [--model NAME] [--steps 400] [--seed 0] [--processor-time]

Requests of mixed prompts and outputs come at seeded intervals of steps; the engine core schedules, computes and samples
them on the model with all weights in place. The full record is the one in the cache, or is measured first; the brief
one, of a start without a memory cap, is measured anew. Both predict the same steps. A step counts from the call of
`schedule` to its result; steps that are the first of their size are left out, as the model does.
Goal: |bias| at most 5 %, P95 of |error| at most 15 %, on a quiet machine. With --processor-time a step is what it took
of the processor, for one compute thread: what neighbours take does not count, what they slow down still does.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import time
from collections.abc import Sequence

import torch

from benchmarks.paired_steps import Criterion, foreign_reasons, heading, read_processor_times
from engine.brief_profiler import ServingParts, measure_brief
from engine.clock import MonotonicClock
from engine.compute_share import offload_threads
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.latency_fit import fit_latency
from engine.messages import AddGroup, SLORequest
from engine.model_runner import ModelRunner
from engine.profile_run import obtain_record
from engine.runner import Clock
from engine.runner_factory import load_kernels
from engine.sampling_params import SamplingParams
from engine.weights import LoadedModel, load_model
from kernels.native.row_sampling import NativeRowSampling
from kernels.row_sampling import RowSampling
from offload.measurements import median, p95
from offload.record import PerformanceRecord
from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients, StepKind
from scheduler.latency_model import LatencyModel, StepPrediction
from scheduler.link import LinkSnapshot
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses
from scheduler.step_features import StepFeatures
from server.model_source import DEFAULT_ALIAS, resolve_model

MAX_MODEL_LEN = 1024
NUM_BLOCKS = 1024
MAX_BIAS, MAX_P95 = 0.05, 0.15


@dataclasses.dataclass(frozen=True, slots=True)
class StepError:
    """Predicted over measured, less 1."""

    kind: StepKind
    fitted: float
    corrected: float


class ProcessorClock:
    """Processor time of the calling thread."""

    def now_s(self) -> float:
        return time.thread_time()


class RecordingModel(LatencyModel):
    """A latency model that notes how far each of its steps was off, before it learns from it."""

    def __init__(self, coefficients: LatencyCoefficients, beside: RecordingModel | None = None) -> None:
        """
        Args:
            beside: predicts the same steps and is asked nothing.
        """
        super().__init__(coefficients)
        self.errors: list[StepError] = []
        self._beside = beside
        self._of_beside: StepPrediction | None = None

    def begin(self, features: StepFeatures, link: LinkSnapshot) -> StepPrediction:
        if self._beside is not None:
            self._of_beside = self._beside.begin(features, link)
        return super().begin(features, link)

    def observe(self, prediction: StepPrediction, measured_s: float) -> None:
        if not prediction.is_frozen:
            fitted, corrected = prediction.uncorrected_s, prediction.mean_s
            self.errors.append(StepError(prediction.kind, fitted / measured_s - 1.0, corrected / measured_s - 1.0))
        if self._beside is not None and self._of_beside is not None:
            self._beside.observe(self._of_beside, measured_s)
        super().observe(prediction, measured_s)


def make_runner(model: LoadedModel, config: SchedulerConfig, sampling: RowSampling | None) -> ModelRunner:
    """As it serves once every block was used: the first use of memory costs the system's zeros, in prefills."""
    runner = ModelRunner(
        model, NUM_BLOCKS, config.block_size, config.max_num_seqs, config.max_num_batched_tokens, MAX_MODEL_LEN,
        sampling=sampling,
    )  # fmt: skip
    runner.kv_cache.region.zero_()
    return runner


def run_steps(
    runner: ModelRunner, config: SchedulerConfig, latency: RecordingModel, clock: Clock, num_steps: int, seed: int
) -> None:
    """Requests through the engine core, for so many steps."""
    scheduler = Scheduler(config, SLOClasses(), NUM_BLOCKS, MAX_MODEL_LEN, latency)
    core = EngineCore(scheduler, runner, clock, block_size=config.block_size, eos_token_ids=frozenset())
    source = random.Random(seed)
    for step in range(num_steps):
        is_arrival = core.num_live_choices < 8 and source.random() < 0.2
        messages = [_group(step, source, clock.now_s())] if is_arrival or not core.num_live_choices else []
        core.turn(messages)
        core.raise_if_failing()


def _group(index: int, source: random.Random, arrival_s: float) -> AddGroup:
    num_prompt = source.choice((24, 100, 260, 600))
    return AddGroup(
        group_id=f"request-{index}",
        prompts=(tuple(source.randrange(100, 20_000) for _ in range(num_prompt)),),
        n=1,
        sampling=SamplingParams(max_tokens=source.randrange(4, 60), ignore_eos=True, seed=index),
        slo=SLORequest(requested="standard", granted="standard"),
        arrival_s=arrival_s,
    )


def table(errors: Sequence[StepError]) -> str:
    """Bias (the median) and P95 of |error|, by kind of step."""
    lines = [f"{'steps':10} {'number':>6} {'fit bias':>9} {'fit P95':>9} {'corrected':>10} {'P95':>9}"]
    groups = {kind.name.lower(): [error for error in errors if error.kind is kind] for kind in StepKind}
    for name, group in {**groups, "all": list(errors)}.items():
        if group:
            fitted, corrected = [error.fitted for error in group], [error.corrected for error in group]
            lines.append(
                f"{name:10} {len(group):6} {median(fitted):+9.1%} {p95([abs(e) for e in fitted]):9.1%} "
                f"{median(corrected):+10.1%} {p95([abs(e) for e in corrected]):9.1%}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_ALIAS)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processor-time", action="store_true")
    arguments = parser.parse_args()
    threads = offload_threads(None)
    if arguments.processor_time and threads != 1:
        parser.error(f"--processor-time is of one thread, {threads} compute; set OMP_NUM_THREADS=1")
    clock: Clock = ProcessorClock() if arguments.processor_time else MonotonicClock()
    engine, config = EngineConfig(str(resolve_model(arguments.model).path)), SchedulerConfig()
    full = obtain_record(engine, config, lambda _phase, _fraction: None).record
    library = load_kernels(engine.kernels, threads, os.environ)
    torch.set_num_threads(threads if library is None else 1)
    model = load_model(engine.model_path, engine.dtype, lambda _: None, library=library)
    sampling = None if library is None else NativeRowSampling(library)
    runner = make_runner(model, config, sampling)
    brief = measure_brief(ServingParts(model, runner.kv_cache, sampling, config, MAX_MODEL_LEN), now_s=clock.now_s)
    of_brief = RecordingModel(fit_latency(PerformanceRecord(full.fingerprint, brief)))
    of_full = RecordingModel(fit_latency(full), of_brief)
    before = read_processor_times()
    run_steps(runner, config, of_full, clock, arguments.steps, arguments.seed)
    foreign = read_processor_times().foreign_share(before)
    print(heading("Predicted and measured time of a step"))
    print(f"records: full, {full.measurements.wall_s:.1f} s; brief, {brief.wall_s:.1f} s")
    for name, model_of in (("full", of_full), ("brief", of_brief)):
        print(f"\n{name} record\n{table(model_of.errors)}\n{verdict(name, model_of.errors, foreign).line()}")


def verdict(name: str, errors: Sequence[StepError], foreign_share: float) -> Criterion:
    """Of the corrected predictions, which the scheduler works with."""
    corrected = [error.corrected for error in errors]
    bias, spread = median(corrected), p95([abs(error) for error in corrected])
    detail = f"bias {bias:+.1%}, P95 {spread:.1%} of {len(corrected)} steps."
    text = f"corrected predictions: |bias| within {MAX_BIAS:.0%}, P95 within {MAX_P95:.0%}"
    has_passed = abs(bias) <= MAX_BIAS and spread <= MAX_P95
    return Criterion(f"latency, {name} record", text, has_passed, detail, tuple(foreign_reasons(foreign_share)))


if __name__ == "__main__":
    main()
