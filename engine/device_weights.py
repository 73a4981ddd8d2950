"""Weights on a device too small for them, or for them and the KV cache: what is resident, what is streamed.

The device's arena, from its end: what never moves (embedding, head, norms, layers and parts of layers that are never
streamed), the slots, then the units that may be streamed, the first to be streamed last, so that it lies at the border.
KV blocks grow from the front. One more streamed layer drops the unit at the border, and KV may have its place at once;
one less copies it there again.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Sequence

from torch import Tensor

from engine.layers.layer_access import LayerAccess
from engine.layers.slab import Slab
from engine.models.weights_placement import WeightSizes
from offload.arena import Arena, aligned
from offload.host_tier import take_anonymous
from offload.link import Link, TransferHandle
from offload.residency import ResidencyOrder
from offload.step_transfers import StepTransfers
from offload.streamed_unit import StreamedUnit
from offload.transfer import Direction, StreamEvent, Transfer, TransferClass
from offload.weight_streamer import PATIENCE_S, WeightStreamer, no_event

logger = logging.getLogger(__name__)

FIXED_OWNER = "fixed weights"
LAYERS_OWNER = "resident layers"
SLOTS_OWNER = "slots"
KV_OWNER = "kv"
RETURN_S = 1.0
"""How long a copy back to the device waits for an idle link before it goes ahead of the streamed layers."""


@dataclasses.dataclass(frozen=True, slots=True)
class StreamingNumbers:
    """What a plan decides about weights; see `offload.plan.OffloadPlan`.

    Raises:
        ValueError: the numbers do not fit each other.
    """

    order: ResidencyOrder
    unit_bytes: tuple[int, ...]
    """Of each layer, what is streamed of it: that many bytes from the end of its slab."""
    num_streamed: int
    """At start."""
    min_streamed: int
    max_streamed: int
    num_slots: int

    def __post_init__(self) -> None:
        num_layers = len(self.order.layers)
        if not 0 <= self.min_streamed <= self.num_streamed <= self.max_streamed <= num_layers:
            raise ValueError(
                f"{self.num_streamed} layers streamed at start, at least {self.min_streamed}, at most "
                f"{self.max_streamed} of {num_layers}: these must not decrease"
            )
        if len(self.unit_bytes) != num_layers or (self.max_streamed > 0) != (self.num_slots > 0):
            raise ValueError(
                f"{len(self.unit_bytes)} units and {self.num_slots} slots for {num_layers} layers, of which "
                f"{self.max_streamed} may be streamed"
            )

    @property
    def candidates(self) -> tuple[int, ...]:
        """Layers that may be streamed, the first to be first."""
        return self.order.layers[: self.max_streamed]


class DeviceWeights:
    """Owns the weights' part of an arena, the KV border, the host's copies and the streamer.

    Is the memory that `load_model` writes to (`engine.models.weights_placement`) and then how the decoder gets at its
    layers. Used by the thread that computes.
    """

    def __init__(
        self,
        sizes: WeightSizes,
        arena: Arena,
        link: Link,
        numbers: StreamingNumbers,
        block_bytes: int,
        *,
        masters: Sequence[Tensor] | None = None,
        record_event: Callable[[], StreamEvent | None] = no_event,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """
        Args:
            arena: with everything that is neither weights nor KV already reserved.
            block_bytes: of one KV block.
            masters: on the host, one slab for each layer that may be streamed, in the order of `numbers.candidates` and
                as large as its unit; None: memory is taken for them.
            record_event, patience_s: see `WeightStreamer`.

        Raises:
            ArenaFull: what must be on the device does not fit at `min_streamed`.
            MemoryError: the host's memory cannot be had.
            ValueError: the numbers are not of this decoder.
        """
        layer_bytes = sizes.layer_bytes
        if len(layer_bytes) != len(numbers.unit_bytes):
            raise ValueError(f"the plan has {len(numbers.unit_bytes)} layers, the model {len(layer_bytes)}")
        self._arena, self._link, self._numbers, self._block_bytes = arena, link, numbers, block_bytes
        units = {layer: _unit(layer, layer_bytes[layer], numbers.unit_bytes[layer]) for layer in numbers.candidates}
        self._sizes = tuple(aligned(units[layer].num_bytes) for layer in numbers.candidates)
        """Bytes of arena of the unit that is j-th to be streamed."""
        self.fixed = arena.take(FIXED_OWNER, sizes.fixed_bytes, from_end=True)
        heads = self._take_heads(layer_bytes, units)
        slots = self._take_slots(units)
        self._free_bytes = arena.free_bytes
        """For KV, if no unit were resident."""
        self._places = self._take_places(units)
        slabs = take_anonymous([unit.num_bytes for unit in units.values()]) if masters is None else masters
        self._masters = _masters(units, slabs)
        self.slabs = tuple(
            Slab(head, self._masters[layer]) if layer in units else Slab.whole(head) for layer, head in enumerate(heads)
        )
        self._resident = {
            layer: Slab(slab.head, self._places[layer]) if layer in units else slab
            for layer, slab in enumerate(self.slabs)
            if layer in self._places or layer not in units
        }
        self._in_slots = {
            layer: tuple(Slab(heads[layer], slot[: unit.num_bytes]) for slot in slots) for layer, unit in units.items()
        }
        self._streamer = WeightStreamer(
            link, list(units.values()), self._masters, slots, len(layer_bytes),
            record_event=record_event, patience_s=patience_s,
        )  # fmt: skip
        self._num_streamed = self._target = numbers.num_streamed
        self._streamed_layers: tuple[int, ...] = ()
        self._promotion: TransferHandle | None = None
        """Copies the unit that was streamed last back to its place."""
        self._promotion_deadline_s: float | None = None
        self.num_failed_promotions = 0
        self._num_kv_blocks = 0
        self._move_border()

    @property
    def num_streamed(self) -> int:
        """Layers streamed now."""
        return self._num_streamed

    @property
    def is_moving(self) -> bool:
        """Whether the wanted number of streamed layers is still to come, or a copy back is on its way."""
        return self._promotion is not None or self._num_streamed != self._target

    @property
    def num_kv_blocks(self) -> int:
        """KV blocks that have memory now: those below this border. Changes between steps only."""
        return self._num_kv_blocks

    @property
    def max_kv_blocks(self) -> int:
        """KV blocks that there can ever be."""
        return self.kv_blocks_at(self._numbers.max_streamed)

    @property
    def kv_memory(self) -> Tensor:
        """[max_kv_blocks * block_bytes] uint8, for `KVCache`; only blocks below the border may be touched."""
        return self._arena.region[: self.max_kv_blocks * self._block_bytes]

    @property
    def host_bytes(self) -> int:
        """Of the host's copies."""
        return sum(self._sizes)

    @property
    def step_bytes(self) -> int:
        """What a step copies to the device once it has settled."""
        return self._streamer.step_bytes

    def kv_blocks_at(self, num_streamed: int) -> int:
        """KV blocks that there is memory for while that many layers are streamed.

        Raises:
            ValueError: outside of the plan.
        """
        numbers = self._numbers
        if not numbers.min_streamed <= num_streamed <= numbers.max_streamed:
            raise ValueError(
                f"{num_streamed} streamed layers: the plan has {numbers.min_streamed} to {numbers.max_streamed}"
            )
        return (self._free_bytes - sum(self._sizes[num_streamed:])) // self._block_bytes

    def loaded(self) -> LayerAccess:
        """The slabs are written: put the resident units into their places and start streaming the others."""
        for layer in self._numbers.candidates[self._num_streamed :]:
            self._places[layer].copy_(self._masters[layer])
        self._stream()
        return self

    def set_streamed(self, num_streamed: int, deadline_s: float | None = None) -> None:
        """Between steps: stream that many layers. More take effect at once; fewer one by one, as their copies arrive.

        Before asking for fewer, the caller makes sure that no KV block from `kv_blocks_at(num_streamed)` on is in use
        nor handed out until `is_moving` is False. `num_kv_blocks` says what is in force. A copy that fails ends the
        wish for fewer: the layer stays streamed until that is asked for again.

        Args:
            deadline_s: when a copy back to the device should have arrived, on the link's clock; None: in `RETURN_S`. At
                infinity it never arrives as long as streamed layers keep the link busy.

        Raises:
            ValueError: outside of the plan.
            LinkError: the link is closed or dead.
        """
        self.kv_blocks_at(num_streamed)
        self._target, self._promotion_deadline_s = num_streamed, deadline_s
        self._advance()

    def begin_step(self, deadline_s: float = math.inf) -> None:
        """Before the decoder computes a step; see `WeightStreamer.begin_step`. Copies that have arrived take effect."""
        self._advance()
        self._streamer.begin_step(deadline_s)

    def end_step(self) -> StepTransfers:
        """After it, also where it failed."""
        return self._streamer.end_step()

    @property
    def streamed_layers(self) -> tuple[int, ...]:
        """See `LayerAccess`."""
        return self._streamed_layers

    def acquire(self, layer: int) -> Slab:
        """See `LayerAccess`; of a streamed layer within a step only.

        Raises:
            OffloadError: see `WeightStreamer.acquire`.
        """
        if layer in self._streamed_layers:
            return self._in_slots[layer][self._streamer.acquire(layer)]
        return self._resident[layer]

    def release(self, layer: int) -> None:
        """See `LayerAccess`.

        Raises:
            OffloadError: see `WeightStreamer.release`.
        """
        if layer in self._streamed_layers:
            self._streamer.release(layer)

    def drain(self) -> None:
        """Block until the link writes nothing of the weights any more.

        Raises:
            OffloadError: a copy takes too long.
        """
        self._streamer.drain()
        if self._promotion is not None:
            self._promotion.wait(PATIENCE_S)

    def check(self) -> None:
        """Assert that places, border, ledger and streamer agree."""
        self._arena.check()
        self._streamer.check()
        numbers, ledger = self._numbers, self._arena.ledger()
        kept = self._num_streamed - (self._promotion is not None)
        assert numbers.min_streamed <= kept <= self._num_streamed <= numbers.max_streamed
        assert ledger.get(LAYERS_OWNER, 0) >= sum(self._sizes[kept:])
        assert self._num_kv_blocks == self.kv_blocks_at(kept)
        assert ledger.get(KV_OWNER, 0) == aligned(self._num_kv_blocks * self._block_bytes)
        assert [unit.layer for unit in self._streamer.units] == list(self._streamed_layers)
        assert set(self._streamed_layers) == numbers.order.streamed(self._num_streamed)

    def _take_heads(self, layer_bytes: Sequence[int], units: dict[int, StreamedUnit]) -> list[Tensor]:
        """Of every layer, the bytes that are never streamed."""
        sizes = [units[layer].first_byte if layer in units else size for layer, size in enumerate(layer_bytes)]
        empty = self._arena.region[:0]
        return [self._arena.take(FIXED_OWNER, size, from_end=True) if size else empty for size in sizes]

    def _take_slots(self, units: dict[int, StreamedUnit]) -> list[Tensor]:
        largest = max((unit.num_bytes for unit in units.values()), default=0)
        return [self._arena.take(SLOTS_OWNER, largest, from_end=True) for _ in range(self._numbers.num_slots)]

    def _take_places(self, units: dict[int, StreamedUnit]) -> dict[int, Tensor]:
        """Of every unit that may be resident, its place; those of the layers streamed at start are given back."""
        numbers, arena = self._numbers, self._arena
        places = {
            layer: arena.take(LAYERS_OWNER, units[layer].num_bytes, from_end=True)
            for layer in reversed(numbers.candidates[numbers.min_streamed :])
        }
        for size in self._sizes[numbers.min_streamed : numbers.num_streamed]:
            arena.give_back(LAYERS_OWNER, size, from_end=True)
        return places

    def _advance(self) -> None:
        """Take the steps towards the target that are possible now."""
        before = self._num_streamed
        self._end_promotion()
        while self._promotion is None and self._num_streamed < self._target:
            self._arena.give_back(LAYERS_OWNER, self._sizes[self._num_streamed], from_end=True)
            self._num_streamed += 1
        self._move_border()
        if self._num_streamed != before:
            self._stream()
        if self._promotion is None and self._num_streamed > self._target:
            self._begin_promotion()

    def _begin_promotion(self) -> None:
        """Copy the unit at the border back to its place, which KV gives up."""
        layer = self._numbers.order.layers[self._num_streamed - 1]
        transfer = Transfer(
            Direction.H2D, TransferClass.BACKGROUND, self._masters[layer], self._places[layer],
            self._link.now_s() + RETURN_S if self._promotion_deadline_s is None else self._promotion_deadline_s,
        )  # fmt: skip
        self._promotion = self._link.submit(transfer)
        self._move_border()
        self._arena.take(LAYERS_OWNER, transfer.num_bytes, from_end=True)

    def _end_promotion(self) -> None:
        """If its copy has arrived, the layer is resident."""
        handle = self._promotion
        if handle is None or not handle.is_done:
            return
        self._promotion = None
        if handle.failed is None:
            self._num_streamed -= 1
            return
        layer = self._numbers.order.layers[self._num_streamed - 1]
        logger.warning("layer %d stays on the host, its copy to the device failed: %s", layer, handle.failed)
        self.num_failed_promotions += 1
        self._arena.give_back(LAYERS_OWNER, self._sizes[self._num_streamed - 1], from_end=True)
        self._target = max(self._target, self._num_streamed)

    def _move_border(self) -> None:
        """Give KV the whole blocks that fit below the units."""
        num_blocks = self.kv_blocks_at(self._num_streamed - (self._promotion is not None))
        have, want = (aligned(count * self._block_bytes) for count in (self._num_kv_blocks, num_blocks))
        if want > have:
            self._arena.take(KV_OWNER, want - have)
        elif want < have:
            self._arena.give_back(KV_OWNER, have - want)
        self._num_kv_blocks = num_blocks

    def _stream(self) -> None:
        """Tell the streamer which layers it has."""
        self._streamed_layers = tuple(sorted(self._numbers.order.streamed(self._num_streamed)))
        self._streamer.set_streamed(self._streamed_layers)


def _unit(layer: int, layer_bytes: int, num_bytes: int) -> StreamedUnit:
    if not 0 < num_bytes <= layer_bytes:
        raise ValueError(f"{num_bytes:,} bytes are streamed of layer {layer}, which has {layer_bytes:,}")
    return StreamedUnit(layer, num_bytes, layer_bytes - num_bytes)


def _masters(units: dict[int, StreamedUnit], slabs: Sequence[Tensor]) -> dict[int, Tensor]:
    """The slab on the host of every unit."""
    if [len(slab) for slab in slabs] != [unit.num_bytes for unit in units.values()]:
        raise ValueError(f"{len(slabs)} slabs of other sizes on the host than those of the {len(units)} units")
    return dict(zip(units, slabs, strict=True))
