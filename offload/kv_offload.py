"""The bytes of the KV tiers: moves blocks between device, host and disk as it is told, and says how each move ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from offload.kv_disk import DiskTier
from offload.kv_disk_moves import KVDiskMoves
from offload.kv_host_pool import KVHostPool
from offload.kv_io import IoLanes, IoThreads, Lane
from offload.kv_link_moves import KVLinkMoves
from offload.kv_moves import KVMoves
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MoveResult
from offload.kv_stats import KVOffloadStats
from offload.link import Link
from offload.load_parts import part_ranges
from offload.transfer import Direction, StreamEvent, TransferClass

PRODUCTION_CHECK_SHARE = 1 / 16
_NO_BYTES = frozenset({MoveKind.DELETE, MoveKind.TOUCH})


class KVOffload:
    """Decides nothing: which block goes where, and when a place is free again, is for who asks.

    Each move has one result, whatever fails: link, disk, thread. Nothing here raises for a failed copy. A load that is
    under way may be used part by part (`wait_part`); whether its bytes are good is known when it has ended.
    """

    def __init__(
        self,
        link: Link,
        device_blocks: Tensor,
        host_pool: KVHostPool,
        disk: DiskTier | None,
        num_load_parts: int,
        *,
        num_layers: int,
        check_share: float,
        record_event: Callable[[], StreamEvent | None],
        on_done: Callable[[], None],
        lanes: IoLanes | None = None,
    ) -> None:
        """Start the threads. `begin`, `collect`, `wait_part` and `wait_ended` are for one thread.

        Args:
            device_blocks: [num_blocks, block_bytes] uint8.
            num_load_parts: into which loads are cut, by layers, as `first_layers` says.
            num_layers: of a block; all take equally many bytes.
            check_share: of the blocks of loads, from 0 to 1: how many are verified. All that is read from disk is.
            record_event: what the device has been given to do until now; None on a CPU.
            on_done: called on any thread when there is something to collect.
            lanes: None: threads of their own.

        Raises:
            ValueError: the layouts of device, host and disk differ, or a number is out of bounds.
        """
        block_bytes = host_pool.block_bytes
        if device_blocks.shape[1] != block_bytes or (disk is not None and disk.block_bytes != block_bytes):
            raise ValueError(
                f"blocks of {device_blocks.shape[1]:,} bytes on the device, {block_bytes:,} on the host and "
                f"{block_bytes if disk is None else disk.block_bytes:,} on disk; they are copied as they are"
            )
        if not 0 <= check_share <= 1:
            raise ValueError(f"check_share is {check_share}; it is a share, from 0 to 1")
        parts = part_ranges(block_bytes, num_layers, num_load_parts)
        self._link = link
        self._device_blocks = device_blocks
        self._pool = host_pool
        self._disk = disk
        self._moves = KVMoves(on_done)
        self._lanes: IoLanes = lanes or IoThreads()
        self._over_link = KVLinkMoves(
            link, device_blocks, host_pool, parts, self._lanes, self._moves, check_share, record_event
        )
        self._on_disk = None if disk is None else KVDiskMoves(disk, host_pool, self._lanes, self._moves)
        self._is_closed = False

    @property
    def has_results(self) -> bool:
        """Whether `collect` would give something."""
        return self._moves.has_results

    def begin(self, moves: Sequence[BlockMove]) -> None:
        """Start them; never blocks. Those of the same kind start in this order.

        Raises:
            ValueError: a number is under way already, a place does not exist, or the offload is closed.
        """
        if self._is_closed and moves:
            raise ValueError("the KV offload is closed; it moves no more blocks")
        for move in moves:
            _require_places(move, "device block", move.device_blocks, len(self._device_blocks))
            _require_places(move, "host slot", move.host_slots, self._pool.num_slots)
        for move in moves:
            self._moves.open(move)
        self._over_link.begin_stores([move for move in moves if move.kind is MoveKind.STORE])
        self._over_link.begin_loads([move for move in moves if move.kind is MoveKind.LOAD])
        for move in moves:
            if move.kind in (MoveKind.STORE, MoveKind.LOAD):
                continue
            if self._on_disk is None:
                self._moves.settle(move, range(len(move.block_hashes)), MoveOutcome.FAILED)
            else:
                self._on_disk.begin(move)

    def collect(self) -> list[MoveResult]:
        """Moves that have ended since the last call, each once; does not block."""
        return self._moves.collect()

    def wait_part(self, transfer_ids: Collection[int], part: int, stream: Any = None) -> None:
        """Block until the parts up to this one of these loads have arrived or failed.

        With a stream of an accelerator: what is given to it from now on waits, the caller mostly does not. Moves that
        have ended are no reason to wait.
        """
        self._over_link.wait_part(transfer_ids, part, stream)

    def wait_ended(self, transfer_ids: Collection[int]) -> None:
        """Block until these loads have ended, so that `collect` has their results."""
        self._over_link.wait_ended(transfer_ids)

    def stats(self) -> KVOffloadStats:
        counts = self._moves.counts()
        done = {kind: counts.get((kind, MoveOutcome.DONE), 0) for kind in MoveKind}
        status = self._link.snapshot()
        h2d, d2h = (status.of(direction).totals for direction in (Direction.H2D, Direction.D2H))
        disk = self._disk
        return KVOffloadStats(
            block_bytes=self._pool.block_bytes,
            num_blocks=counts,
            num_bytes={kind: done[kind] * self._pool.block_bytes for kind in MoveKind if kind not in _NO_BYTES},
            busy_s={
                MoveKind.STORE: d2h[TransferClass.KV_STORE].busy_s + d2h[TransferClass.BACKGROUND].busy_s,
                MoveKind.LOAD: h2d[TransferClass.KV_LOAD].busy_s,
                MoveKind.WRITE: disk.writes.busy_s if disk else 0.0,
                MoveKind.READ: disk.reads.busy_s if disk else 0.0,
            },
            num_verified_blocks=self._over_link.num_verified_blocks + done[MoveKind.READ],
            disk_read_bytes_per_s=disk.reads.bytes_per_s if disk else 0.0,
            disk_write_bytes_per_s=disk.writes.bytes_per_s if disk else 0.0,
            num_queued_reads=self._lanes.num_queued(Lane.READ),
            num_queued_writes=self._lanes.num_queued(Lane.WRITE),
            num_open=self._moves.num_open,
        )

    def close(self) -> None:
        """End all moves and the threads, give host memory and directory back; idempotent.

        Copies over the link are waited for: close the link before, if what is queued need not arrive. A disk that does
        not answer is waited for a second.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._over_link.drain()
        self._lanes.close()
        self._pool.close()
        if self._disk is not None:
            self._disk.close()

    def check(self) -> None:
        """Assert that books and threads are as they should be."""
        self._moves.check()
        self._lanes.check()


def _require_places(move: BlockMove, name: str, places: Sequence[int], num_places: int) -> None:
    for place in places:
        if not 0 <= place < num_places:
            raise ValueError(f"{move.kind} {move.transfer_id} names {name} {place}; there are 0 to {num_places - 1}")
    if len(set(places)) != len(places):
        raise ValueError(f"{move.kind} {move.transfer_id} names a {name} twice: {places}; each block has its own")
