"""Bandwidth that the CPU's link holds under a cap, and what its copier costs whoever computes.

    python benchmarks/link_pacing.py [--caps 0.25,1,2,4] [--copiers memmove,copy_] [--rounds 8] [--seconds 0.4]

One thread computes decode-like products (bfloat16, 4 rows, 30 layers of 576 x 1536) while the link carries slabs of
7 MiB without a break; windows with and without traffic take turns, so that a busy neighbour hits both. `held` is the
median of bandwidth over cap. `wall` and `cpu` are the medians of the time of a pass with traffic over that without:
`wall` includes waiting for the interpreter's lock, `cpu` (of the computing thread) sees through neighbours. `copier` is
the processor time of the link's thread per second. Two kinds of computing: `calls` is a Python call for each product,
`whole` one call for all of a step (as the native decoder does), which never asks for the lock.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable

import torch

from offload.host_link import HostLink, SliceCopier, copy_slice
from offload.link import TransferHandle
from offload.link_config import LinkConfig
from offload.transfer import Direction, LinkTransfer, Transfer, TransferClass

SLAB_BYTES = 7 * 1024**2
NUM_SLABS = 24
NUM_LAYERS = 30


def copy_with_torch(transfer: LinkTransfer, start: int, end: int) -> None:
    for target, source in transfer.pieces(start, end):
        target.copy_(source)


COPIERS: dict[str, SliceCopier] = {"memmove": copy_slice, "copy_": copy_with_torch}


class TimedCopier:
    """A copier, and the processor time of the thread that it runs on."""

    def __init__(self, copy: SliceCopier) -> None:
        self._copy = copy
        self.thread_s = 0.0

    def __call__(self, transfer: LinkTransfer, start: int, end: int) -> None:
        self._copy(transfer, start, end)
        self.thread_s = time.thread_time()


class Traffic:
    """Slabs from a host region into two slots, two queued at any time while it is on."""

    def __init__(self, link: HostLink) -> None:
        self._link = link
        self._host = torch.ones(NUM_SLABS, SLAB_BYTES, dtype=torch.uint8)
        self._slots = torch.ones(2, SLAB_BYTES, dtype=torch.uint8)
        self._num_submitted = 0
        self.is_on = False

    def start(self) -> None:
        self.is_on = True
        for _ in range(2):
            self._submit()

    def stop(self) -> None:
        self.is_on = False
        self._link.drain()

    def _submit(self) -> None:
        index = self._num_submitted
        self._num_submitted += 1
        source, target = self._host[index % NUM_SLABS], self._slots[index % 2]
        self._link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, source, target, index * 1.0), self._next)

    def _next(self, _: TransferHandle) -> None:
        if self.is_on:
            self._submit()


def make_compute() -> dict[str, Callable[[], None]]:
    """The two kinds; both read the same weights."""
    weights = torch.randn(NUM_LAYERS, 576, 1536).to(torch.bfloat16)
    rows = torch.randn(4, 576).to(torch.bfloat16)
    batched_rows = rows.expand(NUM_LAYERS, 4, 576)

    def in_calls() -> None:
        for layer in weights:
            torch.mm(rows, layer)

    def in_one_call() -> None:
        torch.bmm(batched_rows, weights)

    return {"calls": in_calls, "whole": in_one_call}


@dataclasses.dataclass
class Window:
    """Passes of some computing for a while: the median of their wall and processor times."""

    wall_s: float
    cpu_s: float

    @classmethod
    def run(cls, compute: Callable[[], None], seconds: float) -> Window:
        wall, cpu = [], []
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            wall_start_s, cpu_start_s = time.monotonic(), time.thread_time()
            compute()
            cpu.append(time.thread_time() - cpu_start_s)
            wall.append(time.monotonic() - wall_start_s)
        return cls(statistics.median(wall), statistics.median(cpu))


def measure(copier: str, cap: float, kind: str, compute: Callable[[], None], arguments: argparse.Namespace) -> None:
    """Print one line."""
    copy = TimedCopier(COPIERS[copier])
    link = HostLink(LinkConfig(cap, cap), {Direction.H2D: cap}, copy)
    traffic = Traffic(link)
    held, wall, cpu, copier_share = [], [], [], []
    for _ in range(arguments.rounds):
        alone = Window.run(compute, arguments.seconds / 2)
        before, thread_s, start_s = _num_bytes(link), copy.thread_s, time.monotonic()
        traffic.start()
        beside = Window.run(compute, arguments.seconds)
        traffic.stop()
        elapsed_s = time.monotonic() - start_s
        held.append((_num_bytes(link) - before) / elapsed_s / cap)
        copier_share.append((copy.thread_s - thread_s) / elapsed_s)
        wall.append(beside.wall_s / alone.wall_s)
        cpu.append(beside.cpu_s / alone.cpu_s)
    status = link.snapshot().h2d
    link.close()
    print(
        f"{copier:8} {cap / 1e9:6.2f} {kind:6} {statistics.median(held):7.4f} {min(held):7.4f} "
        f"{status.p50_bytes_per_s / cap:7.3f} {status.p5_bytes_per_s / cap:7.3f} "
        f"{statistics.median(wall) - 1:+8.1%} {statistics.median(cpu) - 1:+8.1%} {statistics.median(copier_share):8.1%}"
    )


def _num_bytes(link: HostLink) -> int:
    return link.snapshot().h2d.totals[TransferClass.WEIGHTS].num_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caps", default="0.25,1,2,4", help="in 10^9 bytes per second")
    parser.add_argument("--copiers", default="memmove,copy_")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    computes = make_compute()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; slabs of {SLAB_BYTES:,} bytes")
    print(
        f"{'copier':8} {'GB/s':>6} {'kind':6} {'held':>7} {'worst':>7} {'p50':>7} {'p5':>7} "
        f"{'wall':>8} {'cpu':>8} {'copier':>8}"
    )
    for cap in (float(value) * 1e9 for value in arguments.caps.split(",")):
        for kind, compute in computes.items():
            for copier in arguments.copiers.split(","):
                measure(copier, cap, kind, compute, arguments)


if __name__ == "__main__":
    main()
