"""Between the scheduler, which decides where KV blocks go, and `offload`, which moves them; and a step's gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.damage_log import DamageLog
from engine.kv_bytes import KVBytes
from offload.kv_offload import KVOffload
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MovePurpose
from offload.kv_stats import KVOffloadStats
from scheduler.kv_transfer import BlockOutcome, KVTransfer, Purpose, TransferKind, TransferResult
from scheduler.output import SchedulerOutput

_KINDS = {kind: MoveKind(kind.value) for kind in TransferKind}
_PURPOSES = {purpose: MovePurpose(purpose.value) for purpose in Purpose}
_OUTCOMES = {MoveOutcome(outcome.value): outcome for outcome in BlockOutcome}


class KVTierManager:
    """Starts the copies of a step, holds its layers back until their part is there, and reports what has ended.

    Implements `LayerGate`. Used by the thread of the step loop.
    """

    def __init__(self, mover: KVOffload, part_layers: Sequence[int], link_now_s: Callable[[], float]) -> None:
        """
        Args:
            mover: closed with this.
            part_layers: where the parts of a load begin, from 0 on.
            link_now_s: the clock of deadlines over there.
        """
        self._mover = mover
        self._part_layers = tuple(part_layers)
        self._part_of = {layer: part for part, layer in enumerate(part_layers)}
        self._link_now_s = link_now_s
        self._damage = DamageLog()
        self._gated_ids: tuple[int, ...] = ()
        """Loads that the step under way is gated on and that had not ended when it began."""
        self._open_ids: set[int] = set()
        """Transfers that were begun and not collected."""
        self._ended: list[TransferResult] = []
        """Taken from the mover and not collected."""
        self._last: dict[int, TransferResult] = {}
        """What was collected last."""
        self._kv_bytes: KVBytes | None = None
        """None: something has ended since they were counted."""

    @property
    def num_open(self) -> int:
        """Transfers that were begun and whose end was not taken in."""
        return len(self._open_ids) + len(self._ended)

    @property
    def gated_layers(self) -> tuple[int, ...]:
        """As `LayerGate` says."""
        return self._part_layers if self._gated_ids else ()

    def pass_layer(self, layer: int) -> None:
        """As `LayerGate` says."""
        self._mover.wait_part(self._gated_ids, self._part_of[layer])

    def begin(self, output: SchedulerOutput, now_s: float) -> None:
        """Start the copies of a step, before it computes."""
        if output.transfers:
            shift_s = self._link_now_s() - now_s
            self._mover.begin([_move(transfer, shift_s) for transfer in output.transfers])
            self._open_ids.update(transfer.transfer_id for transfer in output.transfers)
        if output.gated_loads:
            self._take_ended()
            gated = {load.transfer_id for load in output.gated_loads}
            self._gated_ids = tuple(sorted(gated.intersection(self._open_ids)))

    def end(self) -> None:
        """The step has computed, or failed: block until its gated loads have ended."""
        if self._gated_ids:
            self._mover.wait_ended(self._gated_ids)
            self._gated_ids = ()

    def collect(self) -> tuple[TransferResult, ...]:
        """As `OffloadManager` says."""
        if not self._ended and not self._mover.has_results:
            self._last = {}
            return ()
        self._take_ended()
        results, self._ended = tuple(self._ended), []
        self._last = {result.transfer_id: result for result in results}
        return results

    def failed_requests(self, output: SchedulerOutput) -> frozenset[str]:
        """As `OffloadManager.void_requests` says."""
        return frozenset(load.request_id for load in output.gated_loads if not self._last[load.transfer_id].is_done)

    def has_results(self) -> bool:
        """As `OffloadManager` says."""
        return bool(self._ended) or self._mover.has_results

    def kv_bytes(self) -> KVBytes:
        """As `OffloadManager` says."""
        if self._kv_bytes is None:
            self._kv_bytes = _kv_bytes(self._mover.stats())
        return self._kv_bytes

    @property
    def disk_read_bytes_per_s(self) -> float:
        """Lately; 0: there is no disk."""
        return self.kv_bytes().disk_read_bytes_per_s

    def close(self) -> None:
        """No copy will be asked for any more. Idempotent."""
        self._mover.close()

    def check(self) -> None:
        """Assert that what has ended is not under way, and what is gated is."""
        self._mover.check()
        ended = [result.transfer_id for result in self._ended]
        assert len(set(ended)) == len(ended), "a transfer ended twice"
        assert not self._open_ids.intersection(ended), "what has ended is under way"
        assert self._open_ids.issuperset(self._gated_ids), "a step waits for what nobody began"

    def _take_ended(self) -> None:
        self._kv_bytes = None
        num_damaged = 0
        for result in self._mover.collect():
            num_damaged += result.outcomes.count(MoveOutcome.CORRUPT)
            self._open_ids.remove(result.transfer_id)
            outcomes = tuple(_OUTCOMES[outcome] for outcome in result.outcomes)
            self._ended.append(TransferResult(result.transfer_id, outcomes))
        self._damage.add(num_damaged, self._link_now_s())


def _kv_bytes(stats: KVOffloadStats) -> KVBytes:
    return KVBytes(
        block_bytes=stats.block_bytes,
        num_bytes={kind.value: num_bytes for kind, num_bytes in stats.num_bytes.items()},
        busy_s={kind.value: busy_s for kind, busy_s in stats.busy_s.items()},
        num_verified_blocks=stats.num_verified_blocks,
        disk_read_bytes_per_s=stats.disk_read_bytes_per_s,
        disk_write_bytes_per_s=stats.disk_write_bytes_per_s,
    )


def _move(transfer: KVTransfer, shift_s: float) -> BlockMove:
    """The same on the clock of the link, which is `shift_s` ahead."""
    return BlockMove(
        transfer_id=transfer.transfer_id,
        kind=_KINDS[transfer.kind],
        purpose=_PURPOSES[transfer.purpose],
        block_hashes=transfer.block_hashes,
        device_blocks=transfer.device_blocks,
        host_slots=transfer.host_slots,
        deadline_s=transfer.deadline_s + shift_s,
        positions=transfer.positions,
    )
