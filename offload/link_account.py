"""What a link has carried, by direction and class of transfer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from offload.link import TransferTotals
from offload.transfer import Direction, TransferClass


@dataclasses.dataclass(slots=True)
class _Counters:
    num_transfers: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    num_slices: int = 0
    num_late_slices: int = 0
    num_missed: int = 0
    num_failed: int = 0


class LinkAccount:
    """Counters that only grow."""

    def __init__(self) -> None:
        self._counters = {direction: {name: _Counters() for name in TransferClass} for direction in Direction}

    def add_slice(
        self, direction: Direction, transfer_class: TransferClass, num_bytes: int, busy_s: float, is_late: bool
    ) -> None:
        """A slice has arrived."""
        counters = self._counters[direction][transfer_class]
        counters.num_slices += 1
        counters.num_bytes += num_bytes
        counters.busy_s += busy_s
        counters.num_late_slices += is_late

    def add_transfer(
        self, direction: Direction, transfer_class: TransferClass, is_missed: bool, has_failed: bool
    ) -> None:
        """A transfer has ended. One that failed is not counted as missed too."""
        counters = self._counters[direction][transfer_class]
        counters.num_transfers += 1
        counters.num_failed += has_failed
        counters.num_missed += is_missed and not has_failed

    def totals(self, direction: Direction) -> Mapping[TransferClass, TransferTotals]:
        return {
            name: TransferTotals(
                counters.num_transfers,
                counters.num_bytes,
                counters.busy_s,
                counters.num_slices,
                counters.num_late_slices,
                counters.num_missed,
                counters.num_failed,
            )
            for name, counters in self._counters[direction].items()
        }

    def check(self) -> None:
        """Assert that no part is more than its whole."""
        for by_class in self._counters.values():
            for counters in by_class.values():
                assert 0 <= counters.num_late_slices <= counters.num_slices, counters
                assert 0 <= counters.num_missed + counters.num_failed <= counters.num_transfers, counters
                assert counters.num_bytes >= 0 and counters.busy_s >= 0, counters
