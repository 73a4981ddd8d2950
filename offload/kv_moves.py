"""Moves of blocks that are under way, and the results of those that have ended."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable

from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MoveResult


class KVMoves:
    """Each move that was opened has one result, which is collected once. Used by any thread."""

    def __init__(self, on_done: Callable[[], None]) -> None:
        """
        Args:
            on_done: called, on whatever thread, when a result is there.
        """
        self._on_done = on_done
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._open: dict[int, tuple[BlockMove, list[MoveOutcome | None]]] = {}
        self._results: deque[MoveResult] = deque()
        self._counts: Counter[tuple[MoveKind, MoveOutcome]] = Counter()

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    @property
    def num_open(self) -> int:
        """Moves that have not ended."""
        return len(self._open)

    def counts(self) -> dict[tuple[MoveKind, MoveOutcome], int]:
        """Blocks that have ended, by kind and outcome."""
        with self._lock:
            return dict(self._counts)

    def open(self, move: BlockMove) -> None:
        """Raises: ValueError: its number is that of one under way."""
        with self._lock:
            if move.transfer_id in self._open:
                raise ValueError(f"move {move.transfer_id} is under way already")
            self._open[move.transfer_id] = (move, [None] * len(move.block_hashes))
        if not move.block_hashes:
            self.settle(move, (), MoveOutcome.DONE)

    def settle(self, move: BlockMove, positions: Iterable[int], outcome: MoveOutcome) -> None:
        """The blocks at these positions have ended. Once the whole move has, this changes nothing."""
        with self._lock:
            entry = self._open.get(move.transfer_id)
            if entry is None or entry[0] is not move:
                return
            outcomes = entry[1]
            for position in positions:
                outcomes[position] = outcome
            known = tuple(each for each in outcomes if each is not None)
            if len(known) < len(outcomes):
                return
            del self._open[move.transfer_id]
            self._results.append(MoveResult(move.transfer_id, known))
            self._counts.update((move.kind, each) for each in known)
            self._change.notify_all()
        self._on_done()

    def collect(self) -> list[MoveResult]:
        """Those that have ended since the last call, in the order of their end."""
        with self._lock:
            results = list(self._results)
            self._results.clear()
            return results

    def wait_ended(self, transfer_ids: Collection[int]) -> None:
        """Block until none of these is under way."""
        with self._lock:
            self._change.wait_for(lambda: not any(each in self._open for each in transfer_ids))

    def check(self) -> None:
        """Assert that what is open has a block that has not ended, and what has ended is not open."""
        with self._lock:
            for move, outcomes in self._open.values():
                assert None in outcomes, f"move {move.transfer_id} has ended and nobody was told"
            ended = [result.transfer_id for result in self._results]
            assert len(set(ended)) == len(ended) and not self._open.keys() & set(ended)
