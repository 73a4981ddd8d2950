"""Blocks of KV over the link: device to host and back."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from offload.block_transfer import BlockTransfer
from offload.kv_host_pool import KVHostPool
from offload.kv_io import IoLanes, IoOperation, Lane
from offload.kv_moves import KVMoves
from offload.kv_request import BlockMove, MoveOutcome, MovePurpose
from offload.link import Link, LinkError, TransferHandle
from offload.transfer import Direction, StreamEvent, TransferClass

SEAL_BYTES = 16 * 1024**2
"""Of a store, summed up at a time: about a millisecond that a load's verification may have to wait."""


class _Load:
    """A load: which of its blocks are copied, and its parts."""

    def __init__(self, move: BlockMove, num_parts: int) -> None:
        self.move = move
        self.positions: list[int] = []
        """Of the blocks that are copied."""
        self.handles: list[TransferHandle | None] = []
        """One a part; None: it was not accepted."""
        self.is_submitted = threading.Event()
        self.open_parts = set(range(num_parts))
        self.is_failed = False


class KVLinkMoves:
    """STORE and LOAD. `begin_*` and `wait_part` are for one thread.

    A store has ended when the slots' checksums are known. A load verifies a share of its blocks, before a byte of them
    moves; the others go at once. It ends when no part of it is under way, failed or not.
    """

    def __init__(
        self,
        link: Link,
        device_blocks: Tensor,
        pool: KVHostPool,
        parts: Sequence[tuple[int, int]],
        lanes: IoLanes,
        moves: KVMoves,
        check_share: float,
        record_event: Callable[[], StreamEvent | None],
    ) -> None:
        """
        Args:
            device_blocks: [num_blocks, block_bytes] uint8.
            parts: of a load: bytes of each block, (first, how many).
            check_share: of the blocks of loads, from 0 to 1: how many are verified.
        """
        self._link = link
        self._device_blocks = device_blocks
        self._pool = pool
        self._parts = parts
        self._lanes = lanes
        self._moves = moves
        self._check_share = check_share
        self._record_event = record_event
        self._lock = threading.Lock()
        self._loads: dict[int, _Load] = {}
        self._stores: dict[int, TransferHandle | None] = {}
        """None: not accepted yet."""
        self._check_credit = 0.0
        self.num_verified_blocks = 0

    def begin_stores(self, stores: Sequence[BlockMove]) -> None:
        """What the device has been given to do until now is done before their bytes are read."""
        after = self._record_event() if stores else None
        for move in stores:
            for slot in move.host_slots:
                self._pool.unseal(slot)
            frees_blocks = move.purpose is MovePurpose.FREES_BLOCKS
            transfer = BlockTransfer(
                direction=Direction.D2H,
                transfer_class=TransferClass.KV_STORE if frees_blocks else TransferClass.BACKGROUND,
                source=self._device_blocks,
                source_ids=move.device_blocks,
                target=self._pool.blocks,
                target_ids=move.host_slots,
                first_byte=0,
                piece_bytes=self._pool.block_bytes,
                deadline_s=move.deadline_s,
                after=after,
            )
            with self._lock:
                self._stores[move.transfer_id] = None
            try:
                handle = self._link.submit(transfer, functools.partial(self._end_store, move))
            except LinkError:
                with self._lock:
                    del self._stores[move.transfer_id]
                self._settle_all(move, MoveOutcome.FAILED)
                continue
            with self._lock:
                if move.transfer_id in self._stores:
                    self._stores[move.transfer_id] = handle

    def begin_loads(self, loads: Sequence[BlockMove]) -> None:
        """What the device has been given to do until now is done before their bytes are written."""
        after = self._record_event() if loads else None
        ready = []
        for move in loads:
            load = _Load(move, len(self._parts))
            with self._lock:
                self._loads[move.transfer_id] = load
            sampled = [position for position in range(len(move.host_slots)) if self._is_sampled()]
            if sampled:
                run = functools.partial(self._verify_and_submit, load, sampled, after)
                fail = functools.partial(self._give_up, load)
                self._lanes.submit(Lane.SUM, IoOperation(run, fail, (0, move.deadline_s)))
            else:
                ready.append(load)
        self._submit(ready, frozenset(), after)

    def wait_part(self, transfer_ids: Collection[int], part: int, stream: Any) -> None:
        """As `KVOffload` says."""
        for transfer_id in transfer_ids:
            with self._lock:
                load = self._loads.get(transfer_id)
            if load is None:
                continue
            load.is_submitted.wait()
            for index, handle in enumerate(load.handles[: part + 1]):
                if handle is not None:
                    self._order(load, index, handle, stream)

    def wait_ended(self, transfer_ids: Collection[int]) -> None:
        """Block until these moves have ended."""
        self.wait_part(transfer_ids, len(self._parts) - 1, None)
        self._moves.wait_ended(transfer_ids)

    def drain(self) -> None:
        """Block until nothing of this is under way over the link."""
        with self._lock:
            loads, stores = list(self._loads), list(self._stores.values())
        for handle in filter(None, stores):
            with contextlib.suppress(LinkError):  # its end tells
                handle.wait()
        self.wait_ended(loads)

    def _is_sampled(self) -> bool:
        """A counter, not chance: the same loads verify the same blocks."""
        self._check_credit += self._check_share
        if self._check_credit < 1.0:
            return False
        self._check_credit -= 1.0
        return True

    def _verify_and_submit(
        self, load: _Load, sampled: Sequence[int], after: StreamEvent | None, claim: Callable[[], bool]
    ) -> MoveOutcome:
        slots = load.move.host_slots
        corrupt = [position for position in sampled if not self._pool.is_intact(slots[position])]
        self.num_verified_blocks += len(sampled)
        if not claim():
            return MoveOutcome.FAILED
        self._submit([load], frozenset(corrupt), after)
        return MoveOutcome.DONE

    def _submit(self, loads: Sequence[_Load], corrupt: frozenset[int], after: StreamEvent | None) -> None:
        """The first part of all of them before the second of any: a step waits for the same part of each."""
        for load in loads:
            self._moves.settle(load.move, corrupt, MoveOutcome.CORRUPT)
            load.positions = [position for position in range(len(load.move.host_slots)) if position not in corrupt]
        for part, (first_byte, num_bytes) in enumerate(self._parts):
            for load in loads:
                self._submit_part(load, part, first_byte, num_bytes, after)
        for load in loads:
            load.is_submitted.set()

    def _submit_part(self, load: _Load, part: int, first_byte: int, num_bytes: int, after: StreamEvent | None) -> None:
        move = load.move
        transfer = BlockTransfer(
            direction=Direction.H2D,
            transfer_class=TransferClass.KV_LOAD,
            source=self._pool.blocks,
            source_ids=tuple(move.host_slots[position] for position in load.positions),
            target=self._device_blocks,
            target_ids=tuple(move.device_blocks[position] for position in load.positions),
            first_byte=first_byte,
            piece_bytes=num_bytes,
            deadline_s=move.deadline_s,
            after=after,
        )
        try:
            handle = self._link.submit(transfer, lambda handle: self._end_part(load, part, handle.failed is not None))
        except LinkError:
            load.handles.append(None)
            self._end_part(load, part, is_failed=True)
        else:
            load.handles.append(handle)

    def _order(self, load: _Load, part: int, handle: TransferHandle, stream: Any) -> None:
        try:
            handle.order(stream)
        except LinkError:
            # Its end tells why. A dead link tells nobody: then no byte moves any more, and this is the end.
            if not handle.is_done:
                self._end_part(load, part, is_failed=True)

    def _end_part(self, load: _Load, part: int, is_failed: bool) -> None:
        """On the link's thread. A second end of a part changes nothing."""
        with self._lock:
            load.open_parts.discard(part)
            load.is_failed |= is_failed
            if load.open_parts:
                return
            self._loads.pop(load.move.transfer_id, None)
        self._moves.settle(load.move, load.positions, MoveOutcome.FAILED if load.is_failed else MoveOutcome.DONE)

    def _give_up(self, load: _Load, outcome: MoveOutcome) -> None:
        """The threads have ended before the load was submitted."""
        if outcome is MoveOutcome.DONE:
            return
        with self._lock:
            self._loads.pop(load.move.transfer_id, None)
        load.is_submitted.set()
        self._settle_all(load.move, MoveOutcome.FAILED)

    def _end_store(self, move: BlockMove, handle: TransferHandle) -> None:
        """On the link's thread. A second end changes nothing: the slots may be others' by then."""
        with self._lock:
            if move.transfer_id not in self._stores:
                return
            del self._stores[move.transfer_id]
        if handle.failed is not None:
            self._settle_all(move, MoveOutcome.FAILED)
            return
        step = max(1, SEAL_BYTES // self._pool.block_bytes)
        for first in range(0, len(move.host_slots), step):
            positions = range(first, min(first + step, len(move.host_slots)))
            run = functools.partial(self._seal, [move.host_slots[position] for position in positions])
            end = functools.partial(self._moves.settle, move, positions)
            self._lanes.submit(Lane.SUM, IoOperation(run, end, (1, move.deadline_s)))

    def _seal(self, slots: Sequence[int], _claim: Callable[[], bool]) -> MoveOutcome:  # the move holds the slots
        for slot in slots:
            self._pool.seal(slot)
        return MoveOutcome.DONE

    def _settle_all(self, move: BlockMove, outcome: MoveOutcome) -> None:
        self._moves.settle(move, range(len(move.block_hashes)), outcome)
