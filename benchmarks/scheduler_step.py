"""Python time of `schedule` and of `update`, without a model: `python -m benchmarks.scheduler_step`.

Prints the median and the 99th percentile over the steps, in milliseconds of the thread's processor time, for each
policy and for several numbers of running and waiting requests of three classes. Steps are predicted, and what waits
moves up as requests end. A run is repeated, and of a step the least time counts: equal runs decide the same, and what
neighbours on the machine take is not the scheduler's.

With tiers, full blocks are stored on a host that holds four times as many as the device, and every copy is over with
the step that asked for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import statistics
import time
from typing import Literal, get_args

from scheduler.config import PolicyName, SchedulerConfig
from scheduler.kv_transfer import NO_TIERS, BlockOutcome, KVTransfer, TierConfig, TransferResult
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot
from scheduler.output import RequestResult, ScheduledRequest, StepResult
from scheduler.ramp import Ramp
from scheduler.request import RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import SLO, SLOClasses

AdmissionName = Literal["caps", "promise"]
TiersName = Literal["off", "on"]
NUM_PROMPT_TOKENS = 256
MIN_OUTPUT_TOKENS = 200
NUM_OUTPUT_LENGTHS = 700
NUM_TENANTS = 50
BLOCK_SIZE = 16
MAX_BLOCKS = 80
"""Of one request."""
CLASS_NAMES = ("standard", "batch", "standard", "interactive")
"""In turn."""
COEFFICIENTS = LatencyCoefficients(Ramp(5e-3, (8.0, 64.0, 512.0), (1e-5, 3e-5, 4e-5)), Ramp(1e-3, (64.0,), (1e-5,)))
HOST_SHARE = 4
"""Host slots for each device block."""
BLOCK_BYTES = 1 << 20
LINK = LinkSnapshot(h2d=LinkDirection(2e10, 2e10), d2h=LinkDirection(2e10, 2e10))
"""It bears as many blocks as are ever stored at a time."""
NUM_STEPS = 700
NUM_WARM_UP_STEPS = 100


@dataclasses.dataclass(slots=True)
class Times:
    """Milliseconds of each step after the warm-up, and how many requests it computed."""

    schedule_ms: list[float]
    update_ms: list[float]
    num_scheduled: list[int]

    def least(self, other: Times) -> Times:
        """Of two equal runs."""
        assert self.num_scheduled == other.num_scheduled, "equal runs decide the same"
        return Times(
            list(map(min, self.schedule_ms, other.schedule_ms)),
            list(map(min, self.update_ms, other.update_ms)),
            self.num_scheduled,
        )


def make_scheduler(
    policy: PolicyName, admission: AdmissionName, tiers: TiersName, num_running: int, num_waiting: int
) -> Scheduler:
    """With all requests added at once; no class's cap refuses any.

    Where promises are tested, nobody asks for one that could not be kept: the last class is left out.
    """
    config = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=2048,
        max_queued_requests=num_running + num_waiting,
        scheduler_policy=policy,
        admission=admission,
    )
    classes = SLOClasses(tuple(dataclasses.replace(c, queue_cap_tokens=10**9) for c in SLOClasses()))
    num_blocks = num_running * MAX_BLOCKS
    host = TierConfig(HOST_SHARE * num_blocks, block_bytes=BLOCK_BYTES) if tiers == "on" else NO_TIERS
    scheduler = Scheduler(config, classes, num_blocks, 4096, latency=LatencyModel(COEFFICIENTS), tiers=host)
    class_names = CLASS_NAMES if admission == "caps" else CLASS_NAMES[:-1]
    for index in range(num_running + num_waiting):
        scheduler.add((spec_of(index, class_names[index % len(class_names)]),), 0.0)
    return scheduler


def spec_of(index: int, slo_class: str) -> RequestSpec:
    """A request whose prompt is unlike any other."""
    name = f"r{index}"
    hashes = tuple(f"{name}-{i}".encode() for i in range(NUM_PROMPT_TOKENS // BLOCK_SIZE))
    max_tokens = MIN_OUTPUT_TOKENS + index % NUM_OUTPUT_LENGTHS
    slo, tenant = SLO(slo_class, slo_class), f"t{index % NUM_TENANTS}"
    return RequestSpec(name, name, NUM_PROMPT_TOKENS, max_tokens, hashes, slo, 0.0, tenant=tenant)


def result_of(scheduled: ScheduledRequest) -> RequestResult:
    """One token where one was asked for, and the hash of a block that became full."""
    end = scheduled.num_computed_tokens + scheduled.num_tokens
    is_new_block = end > NUM_PROMPT_TOKENS and end % BLOCK_SIZE == 0
    hashes = (f"{scheduled.request_id}/{end}".encode(),) if is_new_block else ()
    return RequestResult(scheduled.request_id, int(scheduled.samples), None, hashes)


def end_of(transfer: KVTransfer) -> TransferResult:
    """All of it arrived."""
    return TransferResult(transfer.transfer_id, (BlockOutcome.DONE,) * len(transfer.block_hashes))


def measure(
    policy: PolicyName, admission: AdmissionName, tiers: TiersName, num_running: int, num_waiting: int
) -> Times:
    """One run; each step takes as long as predicted."""
    scheduler = make_scheduler(policy, admission, tiers, num_running, num_waiting)
    times, now_s = Times([], [], []), 0.0
    link = LINK if tiers == "on" else NO_LINK
    gc.collect()
    gc.freeze()  # as a server's start does: what waits is not walked through
    for step in range(NUM_STEPS):
        begin_s = time.thread_time()
        output = scheduler.schedule(now_s, link)
        scheduled_s = time.thread_time() - begin_s
        now_s += output.predicted_s or 0.01
        results, transfers = tuple(map(result_of, output.scheduled)), tuple(map(end_of, output.transfers))
        result = StepResult(output.step_id, results, transfers)
        begin_s = time.thread_time()
        scheduler.update(output, result, now_s)
        updated_s = time.thread_time() - begin_s
        if step >= NUM_WARM_UP_STEPS:
            times.schedule_ms.append(scheduled_s * 1e3)
            times.update_ms.append(updated_s * 1e3)
            times.num_scheduled.append(len(output.scheduled))
    gc.unfreeze()
    return times


def main() -> None:
    """Print one line for each policy, load, and tiers off or on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=get_args(PolicyName), choices=get_args(PolicyName))
    parser.add_argument("--admission", default="caps", choices=get_args(AdmissionName))
    parser.add_argument("--running", nargs="+", type=int, default=(1, 32, 64, 256))
    parser.add_argument("--waiting", nargs="+", type=int, default=(0, 100, 1000, 10000))
    parser.add_argument("--tiers", nargs="+", default=get_args(TiersName), choices=get_args(TiersName))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':>8} {'':>8} {'':>8} {'':>8} {'':>8} {'schedule ms':>19} {'update ms':>19}")
    names = ("policy", "running", "waiting", "tiers", "computed", "median", "p99", "median", "p99")
    print(" ".join(f"{name:>{_width(index)}}" for index, name in enumerate(names)))
    arms = itertools.product(options.policies, options.running, options.waiting, options.tiers)
    for policy, num_running, num_waiting, tiers in arms:
        times = measure(policy, options.admission, tiers, num_running, num_waiting)
        for _ in range(options.repeats - 1):
            times = times.least(measure(policy, options.admission, tiers, num_running, num_waiting))
        num_scheduled = statistics.median(times.num_scheduled)
        print(f"{policy:>8} {num_running:>8} {num_waiting:>8} {tiers:>8} {num_scheduled:>8.0f}", end="")
        for values in (times.schedule_ms, times.update_ms):
            p99 = statistics.quantiles(values, n=100)[98]
            print(f" {statistics.median(values):>10.3f} {p99:>8.3f}", end="")
        print(flush=True)


def _width(column: int) -> int:
    return 10 if column in (5, 7) else 8


if __name__ == "__main__":
    main()
