"""Parts of the KV tiers, small, with faults on demand."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

from offload.block_files import BlockFiles
from offload.host_tier import HostTier
from offload.kv_fingerprint import KVFingerprint
from offload.kv_host_pool import KVHostPool
from offload.kv_io import IoOperation, Lane
from offload.kv_offload import KVOffload
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MovePurpose, MoveResult
from offload.link import Link, TransferHandle
from offload.transfer import LinkTransfer, TransferClass
from tests.fake_link import FakeLink

NUM_LAYERS = 5
BLOCK_BYTES = NUM_LAYERS * 60
FINGERPRINT = KVFingerprint("0123456789abcdef", "stored", "bfloat16", "native 01", 4, NUM_LAYERS, 1, 3)
NUM_DEVICE_BLOCKS = 12
NUM_SLOTS = 8
WAIT_S = 20.0
"""Longer than anything here takes; who waits that long has found an error."""


def key(number: int) -> bytes:
    """The hash of a block, as the scheduler's are."""
    return number.to_bytes(16, "big")


def block_of(number: int, num_bytes: int = BLOCK_BYTES) -> Tensor:
    """Bytes that no other number has."""
    return torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))


def device_blocks() -> Tensor:
    return torch.stack([block_of(1000 + number) for number in range(NUM_DEVICE_BLOCKS)])


def move(
    transfer_id: int,
    kind: MoveKind,
    numbers: tuple[int, ...],
    *,
    device: tuple[int, ...] = (),
    host: tuple[int, ...] = (),
    purpose: MovePurpose = MovePurpose.ADMITTED,
) -> BlockMove:
    """A block's number is its position too."""
    positions = numbers if kind in (MoveKind.WRITE, MoveKind.TOUCH) else ()
    return BlockMove(transfer_id, kind, purpose, tuple(map(key, numbers)), device, host, positions=positions)


class FaultyFiles(BlockFiles):
    """The real system, unless a test says otherwise: an error number by call, a delay, less space."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.before: dict[str, Callable[[], None]] = {}
        self.num_calls: dict[str, int] = {}
        self.max_bytes: int | None = None
        """Of free space that `free_bytes` reports."""

    def _call(self, name: str, path: Path) -> None:
        self.num_calls[name] = self.num_calls.get(name, 0) + 1
        self.before.get(name, lambda: None)()
        if name in self.errors:
            raise OSError(self.errors[name], os.strerror(self.errors[name]), str(path))

    def write(self, path: Path, header: bytes, block: memoryview) -> None:
        if self.errors.get("write") == errno.ENOSPC:
            super().write(path, header, block[: len(block) // 2])  # as a full disk leaves it
        self._call("write", path)
        super().write(path, header, block)

    def read(self, path: Path, header: bytearray, block: memoryview) -> bool:
        self._call("read", path)
        return super().read(path, header, block)

    def rename(self, source: Path, target: Path) -> None:
        self._call("rename", target)
        super().rename(source, target)

    def mark_used(self, path: Path, used_s: float) -> None:
        self._call("mark_used", path)
        super().mark_used(path, used_s)

    def remove(self, path: Path) -> None:
        self._call("remove", path)
        super().remove(path)

    def free_bytes(self, path: Path) -> int:
        return super().free_bytes(path) if self.max_bytes is None else self.max_bytes


class Gate:
    """Holds whoever passes until it is opened, and says that somebody is in it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self._open.wait(WAIT_S), "nobody opened the gate"

    def open(self) -> None:
        self._open.set()


class HandleLink(FakeLink):
    """Knows its handles, for faults."""

    def __init__(self, bytes_per_s: float, poisoned_sources: Collection[TransferClass] = ()) -> None:
        super().__init__(bytes_per_s, poisoned_sources=poisoned_sources)
        self._handles: list[TransferHandle] = []

    def submit(self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None = None) -> TransferHandle:
        self._handles.append(super().submit(transfer, on_done))
        return self._handles[-1]

    def open_handles(self) -> list[TransferHandle]:
        """Of what has not ended, in the order it was submitted."""
        return [handle for handle in self._handles if not handle.is_done]


class InlineLanes:
    """Operations are done as they are submitted."""

    def submit(self, lane: Lane, operation: IoOperation) -> None:
        operation.on_end(operation.run(lambda: True))

    def num_queued(self, lane: Lane) -> int:
        return 0

    def close(self) -> None:
        pass

    def check(self) -> None:
        pass


@dataclasses.dataclass(eq=False)
class Tiers:
    """A KV offload and what it moves."""

    offload: KVOffload
    device: Tensor
    pool: KVHostPool
    woken: threading.Semaphore
    results: dict[int, MoveResult] = dataclasses.field(default_factory=dict)

    def run(self, *moves: BlockMove) -> list[tuple[MoveOutcome, ...]]:
        """Their outcomes, once all have ended."""
        self.offload.begin(moves)
        return self.outcomes(*(each.transfer_id for each in moves))

    def outcomes(self, *transfer_ids: int) -> list[tuple[MoveOutcome, ...]]:
        while not all(each in self.results for each in transfer_ids):
            assert self.woken.acquire(timeout=WAIT_S), f"of {transfer_ids} only {sorted(self.results)} have ended"
            for result in self.offload.collect():
                assert result.transfer_id not in self.results, "a move has ended twice"
                self.results[result.transfer_id] = result
        return [self.results[each].outcomes for each in transfer_ids]

    def slot(self, slot: int) -> Tensor:
        return self.pool.blocks[slot]


def make_tiers(link: Link, *, num_load_parts: int = 3, check_share: float = 1.0, **options: object) -> Tiers:
    """The host's memory is the test's alone."""
    device = device_blocks()
    pool = KVHostPool(HostTier(), NUM_SLOTS, BLOCK_BYTES)
    woken = threading.Semaphore(0)
    offload = KVOffload(
        link,
        device,
        pool,
        options.pop("disk", None),  # type: ignore[arg-type]
        num_load_parts,
        num_layers=NUM_LAYERS,
        check_share=check_share,
        record_event=lambda: None,
        on_done=woken.release,
        **options,  # type: ignore[arg-type]
    )
    return Tiers(offload, device, pool, woken)
