"""Blocks of KV between host slots and files."""

from __future__ import annotations

import functools
from collections.abc import Callable

from offload.kv_disk import DiskTier
from offload.kv_file import checksum
from offload.kv_host_pool import KVHostPool
from offload.kv_io import IoLanes, IoOperation, Lane
from offload.kv_moves import KVMoves
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MovePurpose

TOUCHED_AT_ONCE = 64
"""In one operation: so cheap that the queue would cost more, and soon over on a slow disk too."""
_RANK = {purpose: rank for rank, purpose in enumerate(MovePurpose)}


class KVDiskMoves:
    """WRITE, READ and DELETE, an operation a block, and TOUCH, of many blocks.

    A file is read into a buffer of the thread and copied into the slot at the end, and written from a copy: a slot that
    was given up is touched no more, however late the disk answers. Reads go by purpose, then deadline; the
    others in the order they were asked for, so that a block may be forgotten and written again.
    """

    def __init__(self, disk: DiskTier, pool: KVHostPool, lanes: IoLanes, moves: KVMoves) -> None:
        self._disk = disk
        self._pool = pool
        self._lanes = lanes
        self._moves = moves
        self._read_buffer = memoryview(bytearray(pool.block_bytes))  # of the lane's thread
        self._write_buffer = memoryview(bytearray(pool.block_bytes))

    def begin(self, move: BlockMove) -> None:
        if move.kind is MoveKind.TOUCH:
            self._begin_touches(move)
            return
        for index, block_hash in enumerate(move.block_hashes):
            if move.kind is MoveKind.DELETE:
                lane, run = Lane.WRITE, functools.partial(self._delete, block_hash)
            elif move.kind is MoveKind.WRITE:
                lane, run = Lane.WRITE, functools.partial(self._write, move, index)
            else:
                self._pool.unseal(move.host_slots[index])
                lane, run = Lane.READ, functools.partial(self._read, block_hash, move.host_slots[index])
            urgency = (_RANK[move.purpose], move.deadline_s) if lane is Lane.READ else ()
            end = functools.partial(self._moves.settle, move, (index,))
            self._lanes.submit(lane, IoOperation(run, end, urgency))

    def _begin_touches(self, move: BlockMove) -> None:
        for first in range(0, len(move.block_hashes), TOUCHED_AT_ONCE):
            indices = range(first, min(first + TOUCHED_AT_ONCE, len(move.block_hashes)))
            run = functools.partial(self._touch, move, indices)
            self._lanes.submit(Lane.WRITE, IoOperation(run, functools.partial(self._moves.settle, move, indices)))

    def _read(self, block_hash: bytes, slot: int, claim: Callable[[], bool]) -> MoveOutcome:
        outcome, block_checksum = self._disk.read(block_hash, self._read_buffer)
        if outcome is MoveOutcome.DONE and claim():
            self._pool.fill(slot, self._read_buffer, block_checksum)
        return outcome

    def _write(self, move: BlockMove, index: int, claim: Callable[[], bool]) -> MoveOutcome:
        slot = move.host_slots[index]
        self._pool.copy_to(slot, self._write_buffer)
        block_checksum = self._pool.checksum_of(slot)
        if block_checksum is None or checksum(self._write_buffer) != block_checksum:
            return MoveOutcome.CORRUPT  # of the slot: what is wrong there is not to outlive the server
        return self._disk.write(
            move.block_hashes[index], self._write_buffer, block_checksum, claim, move.positions[index]
        )

    def _touch(self, move: BlockMove, indices: range, _claim: Callable[[], bool]) -> MoveOutcome:
        for index in indices:
            self._disk.touch(move.block_hashes[index], move.positions[index])
        return MoveOutcome.DONE

    def _delete(self, block_hash: bytes, _claim: Callable[[], bool]) -> MoveOutcome:
        return self._disk.delete(block_hash)
