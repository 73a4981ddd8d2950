"""Python time of one schedule + update, without a model: `python -m benchmarks.scheduler_step`.

Prints the median and the 99th percentile over the steps, in milliseconds of processor time, for several numbers of
running requests; then the same with a latency model that predicts each step and learns from it.
"""

from __future__ import annotations

import statistics
import time

from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.output import RequestResult, ScheduledRequest, StepResult
from scheduler.ramp import Ramp
from scheduler.request import RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import SLO, SLOClasses

NUM_PROMPT_TOKENS = 256
MAX_TOKENS = 1000
NUM_STEPS = 900
BLOCK_SIZE = 16
COEFFICIENTS = LatencyCoefficients(Ramp(5e-3, (8.0, 64.0, 512.0), (1e-4, 3e-4, 4e-4)), Ramp(1e-3, (64.0,), (1e-4,)))


def spec(name: str, arrival_s: float, num_waiting_salt: int = 0) -> RequestSpec:
    """A request whose prompt is unlike any other."""
    hashes = tuple(f"{name}-{i}-{num_waiting_salt}".encode() for i in range(NUM_PROMPT_TOKENS // BLOCK_SIZE))
    slo = SLO("standard", "standard")
    return RequestSpec(name, name, NUM_PROMPT_TOKENS, MAX_TOKENS, hashes, slo, arrival_s)


def result_of(scheduled: ScheduledRequest) -> RequestResult:
    """One token where one was asked for, and the hash of a block that became full."""
    end = scheduled.num_computed_tokens + scheduled.num_tokens
    is_new_block = end > NUM_PROMPT_TOKENS and end % BLOCK_SIZE == 0
    hashes = (f"{scheduled.request_id}/{end}".encode(),) if is_new_block else ()
    return RequestResult(scheduled.request_id, int(scheduled.samples), None, hashes)


def measure(num_running: int, num_waiting: int, latency: LatencyModel | None = None) -> tuple[list[float], int]:
    """Milliseconds of each decode step, and how many requests ran."""
    config = SchedulerConfig(max_num_seqs=num_running, max_num_batched_tokens=max(2048, num_running))
    scheduler = Scheduler(config, SLOClasses(), num_blocks=num_running * 80, max_model_len=4096, latency=latency)
    for index in range(num_running + num_waiting):
        scheduler.add((spec(f"r{index}", 0.0),), 0.0)
    times_ms: list[float] = []
    num_decoding = 0
    for step in range(NUM_STEPS):
        begin = time.thread_time()
        output = scheduler.schedule(step * 0.01, NO_LINK)
        scheduled_s = time.thread_time() - begin
        result = StepResult(output.step_id, tuple(map(result_of, output.scheduled)))
        begin = time.thread_time()
        scheduler.update(output, result, step * 0.01)
        if output.num_tokens == len(output.scheduled):
            times_ms.append((time.thread_time() - begin + scheduled_s) * 1e3)
            num_decoding = len(output.scheduled)
    return times_ms, num_decoding


def main() -> None:
    """Print one line for each load."""
    print(f"{'running':>8} {'waiting':>8} {'median ms':>10} {'p99 ms':>10} {'predicted ms':>13} {'p99 ms':>10}")
    for num_running, num_waiting in ((1, 0), (32, 0), (32, 100), (64, 100), (256, 800)):
        times_ms, num_decoding = measure(num_running, num_waiting)
        predicted_ms, _ = measure(num_running, num_waiting, LatencyModel(COEFFICIENTS))
        p99, predicted_p99 = (statistics.quantiles(times, n=100)[98] for times in (times_ms, predicted_ms))
        print(
            f"{num_decoding:>8} {num_waiting:>8} {statistics.median(times_ms):>10.3f} {p99:>10.3f} "
            f"{statistics.median(predicted_ms):>13.3f} {predicted_p99:>10.3f}"
        )


if __name__ == "__main__":
    main()
