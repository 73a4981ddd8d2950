"""Streams weights: copies the units of streamed layers into a few slots on the device, in the order of their use.

Units follow each other in a circle: after a step's last comes its first again. A slot is filled anew as soon as it is
released, with the first unit in that order that no slot has; nothing depends on which slot that is, on the number of
units being a multiple of that of slots, or on the order in which copies end. While there are more units than slots,
each step copies every unit once; otherwise each is copied once and stays.

The host's copies are never written, so that dropping a unit from the device costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from torch import Tensor

from offload.errors import OffloadError
from offload.link import Link, LinkError
from offload.slot import Slot
from offload.step_transfers import StepTransfers
from offload.streamed_unit import StreamedUnit
from offload.transfer import Direction, StreamEvent, Transfer, TransferClass

PATIENCE_S = 30.0
"""How long computation waits for one unit before the step is given up."""


class WeightLoadError(OffloadError):
    """A layer's weights did not arrive: its copy failed or took too long. The next step loads them again."""


def no_event() -> StreamEvent | None:
    """Where computation runs on the caller's thread, it is over when a layer is released."""
    return None


class WeightStreamer:
    """Owns slots and the loads into them. Used by the one thread that computes; the link copies beside it.

    A step is `begin_step`, `acquire` and `release` of each streamed layer in ascending order, `end_step`. A step that
    was broken off needs no end: the next begins anew. Sets of streamed layers change between steps.
    """

    def __init__(
        self,
        link: Link,
        units: Sequence[StreamedUnit],
        masters: Mapping[int, Tensor],
        slots: Sequence[Tensor],
        num_layers: int,
        *,
        record_event: Callable[[], StreamEvent | None] = no_event,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """
        Args:
            units: of every layer that may be streamed; none is at first.
            masters: of each such layer, the unit's bytes on the host: [unit.num_bytes] uint8.
            slots: on the device, [n] uint8, each as large as the largest unit.
            num_layers: of the decoder: when a layer is needed is estimated from its share of the step.
            record_event: marks what has been given to the device so far; a load starts behind it.
            patience_s: see `PATIENCE_S`.

        Raises:
            ValueError: a slot is too small, or a master is missing or of another size.
        """
        largest = max((unit.num_bytes for unit in units), default=0)
        if units and (not slots or min(map(len, slots)) < largest):
            raise ValueError(f"slots of {[len(slot) for slot in slots]} bytes for units of up to {largest:,}")
        for unit in units:
            if unit.layer not in masters or len(masters[unit.layer]) != unit.num_bytes:
                raise ValueError(f"layer {unit.layer} has no copy of {unit.num_bytes:,} bytes on the host")
        self._link = link
        self._candidates = {unit.layer: unit for unit in units}
        self._masters = dict(masters)
        self._slots = tuple(Slot(index, memory) for index, memory in enumerate(slots))
        self._num_layers = num_layers
        self._record_event = record_event
        self._patience_s = patience_s
        self._units: tuple[StreamedUnit, ...] = ()
        """Streamed, ascending."""
        self._position = 0
        """Index of the unit that computation needs next; behind the last at the end of a step."""
        self._is_in_step = False
        self._begin_s = link.now_s()
        self._span_s = 0.0
        """Expected duration of a step."""
        self._last_finished_s = -math.inf
        """When the load that computation used last was done."""
        self._num_bytes = self._num_loads = 0
        self._copy_s = self._exposed_s = 0.0

    @property
    def units(self) -> tuple[StreamedUnit, ...]:
        """Streamed now, ascending."""
        return self._units

    @property
    def step_bytes(self) -> int:
        """What every step copies once it has settled."""
        return sum(unit.num_bytes for unit in self._units) if len(self._units) > len(self._slots) else 0

    def set_streamed(self, layers: Collection[int]) -> None:
        """Between steps: stream these layers from now on. What slots have and will need stays, loads on the way too.

        Raises:
            OffloadError: within a step.
            ValueError: a layer that is no candidate.
        """
        if self._is_in_step:
            raise OffloadError("the set of streamed layers changes between steps only; end the step first")
        unknown = sorted(set(layers).difference(self._candidates))
        if unknown:
            raise ValueError(f"layers {unknown} cannot be streamed, only {sorted(self._candidates)}")
        self._units = tuple(self._candidates[layer] for layer in sorted(set(layers)))
        self._restart()

    def begin_step(self, deadline_s: float) -> None:
        """Computation is about to begin with the first layer, whatever became of the step before.

        Args:
            deadline_s: when the step should be over, on the link's clock; infinity: as long as the last one took.

        Raises:
            LinkError: the link is closed or dead.
        """
        now_s = self._link.now_s()
        if math.isfinite(deadline_s):
            self._span_s = max(0.0, deadline_s - now_s)
        self._begin_s = now_s
        self._num_bytes = self._num_loads = 0
        self._copy_s = self._exposed_s = 0.0
        self._is_in_step = False
        self._restart()
        self._is_in_step = True

    def acquire(self, layer: int) -> int:
        """Index of the slot with the layer's unit, once it is there; it stays until it is released.

        Raises:
            WeightLoadError: its copy failed, or is late beyond patience.
            OffloadError: another layer comes next.
        """
        self._expect(layer)
        slot = self._slot_of(layer) or self._await_slot(layer)
        if slot.is_loading or slot.has_failed:
            start_s = self._link.now_s()
            try:
                self._await(slot)
            finally:
                self._exposed_s += self._link.now_s() - start_s
        slot.is_held = True
        if not slot.is_used:
            slot.is_used = True
            self._count(slot)
        return slot.index

    def release(self, layer: int) -> None:
        """The layer was computed: its slot is filled with what comes next.

        Raises:
            OffloadError: the layer is not the one held.
            LinkError: the link is closed or dead.
        """
        self._expect(layer)
        slot = self._slot_of(layer)
        if slot is None or not slot.is_held:
            raise OffloadError(f"layer {layer} is released and was not acquired")
        slot.is_held = False
        self._position += 1
        self._fill()

    def end_step(self) -> StepTransfers:
        """The step is over, or broken off."""
        self._is_in_step = False
        now_s = self._link.now_s()
        if self._position == len(self._units):
            self._span_s = now_s - self._begin_s
        hidden_s = max(0.0, self._copy_s - self._exposed_s)
        return StepTransfers(self._num_bytes, self._num_loads, hidden_s, self._exposed_s)

    def drain(self) -> None:
        """Block until no slot is being written; errors are left for the next step.

        Raises:
            WeightLoadError: a copy takes too long.
        """
        for slot in self._slots:
            self._await_end(slot)

    def check(self) -> None:
        """Assert that each layer is in one slot at most, and that computation holds the one that it is at."""
        layers = [slot.unit.layer for slot in self._slots if slot.unit is not None]
        assert len(layers) == len(set(layers)), f"a layer is in two slots: {layers}"
        assert 0 <= self._position <= len(self._units)
        held = [slot for slot in self._slots if slot.is_held]
        assert len(held) <= 1 and all(not slot.is_loading and not slot.has_failed for slot in held)
        assert [slot.unit for slot in held] == ([self._units[self._position]] if held else [])
        for slot in self._slots:
            assert (slot.unit is None) == (slot.handle is None)
            assert slot.unit is None or slot.unit == self._candidates[slot.unit.layer]

    def _upcoming(self) -> Iterator[tuple[StreamedUnit, bool]]:
        """The units that slots should have now, in the order of their use, and whether that is in the next step."""
        num_units = len(self._units)
        for place in range(self._position, self._position + min(len(self._slots), num_units)):
            yield self._units[place % num_units], place >= num_units

    def _restart(self) -> None:
        """Begin with the first unit: what slots have and is wanted stays, everything else goes."""
        self._position = 0
        for slot in self._slots:
            slot.is_held = False
            if slot.has_failed:
                slot.clear()
        self._fill()

    def _fill(self) -> None:
        """Start a load into every slot that has nothing wanted, of what is wanted first and is in none.

        A slot that the link still writes is left alone, wanted or not: its turn comes when that is over.
        """
        wanted = {unit.layer: (unit, is_next) for unit, is_next in self._upcoming()}
        present = {slot.unit.layer for slot in self._slots if slot.unit is not None}
        missing = iter([entry for layer, entry in wanted.items() if layer not in present])
        for slot in self._slots:
            if _has_any(slot, wanted) or slot.is_held or slot.is_loading:
                continue
            unit, is_next = next(missing, (None, False))
            if unit is None:
                return
            self._load(slot, unit, is_next)

    def _load(self, slot: Slot, unit: StreamedUnit, is_next: bool) -> None:
        if slot.unit is not None:
            slot.clear()
        deadline_s = self._begin_s + self._span_s * (unit.layer / self._num_layers + is_next)
        transfer = Transfer(
            Direction.H2D,
            TransferClass.WEIGHTS,
            self._masters[unit.layer],
            slot.memory[: unit.num_bytes],
            deadline_s,
            self._record_event(),
        )
        slot.load(unit, self._link.submit(transfer), self._link.now_s())

    def _expect(self, layer: int) -> None:
        """Raises OffloadError: another layer is next, or the step is not under way."""
        if not self._is_in_step:
            raise OffloadError(f"layer {layer} is used outside of a step")
        following = self._units[self._position].layer if self._position < len(self._units) else None
        if layer != following:
            raise OffloadError(f"layer {layer} is used, layer {following} of those streamed comes next")

    def _slot_of(self, layer: int) -> Slot | None:
        return next((slot for slot in self._slots if slot.unit is not None and slot.unit.layer == layer), None)

    def _await_slot(self, layer: int) -> Slot:
        """All slots were still being written with units of an earlier set: wait for one of them."""
        while True:
            self._fill()
            slot = self._slot_of(layer)
            if slot is not None:
                return slot
            wanted = {unit.layer for unit, _ in self._upcoming()}
            busy = next((slot for slot in self._slots if slot.is_loading and not _has_any(slot, wanted)), None)
            assert busy is not None, f"no slot takes layer {layer}"
            start_s = self._link.now_s()
            self._await_end(busy)
            self._exposed_s += self._link.now_s() - start_s

    def _await(self, slot: Slot) -> None:
        """Raises WeightLoadError: the load failed or is late."""
        self._await_end(slot)
        assert slot.handle is not None and slot.unit is not None
        if slot.handle.failed is not None:
            raise WeightLoadError(
                f"the weights of layer {slot.unit.layer} ({slot.unit.num_bytes:,} bytes) were not copied to the "
                f"device: {slot.handle.failed}; this step is lost, the next one loads them again"
            ) from slot.handle.failed

    def _await_end(self, slot: Slot) -> None:
        """Until the load has ended, well or not; raises WeightLoadError: it is late."""
        handle = slot.handle
        if handle is None or handle.is_done:
            return
        try:
            handle.wait(self._patience_s)
        except LinkError as error:
            if handle.is_done:
                return
            assert slot.unit is not None
            raise WeightLoadError(
                f"the weights of layer {slot.unit.layer} ({slot.unit.num_bytes:,} bytes) are not on the device after "
                f"{self._patience_s:g} s: {error}; the link is overloaded or broken"
            ) from error

    def _count(self, slot: Slot) -> None:
        """Charge the load to the step that used it."""
        assert slot.unit is not None and slot.handle is not None
        self._num_bytes += slot.unit.num_bytes
        self._num_loads += 1
        finished_s = slot.handle.finished_s
        if finished_s is not None:
            self._copy_s += max(0.0, finished_s - max(slot.submitted_s, self._last_finished_s))
            self._last_finished_s = max(finished_s, self._last_finished_s)


def _has_any(slot: Slot, layers: Collection[int]) -> bool:
    """Whether the slot has, or will have, one of these layers."""
    return slot.unit is not None and slot.unit.layer in layers
