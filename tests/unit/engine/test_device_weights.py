"""Where weights and KV lie in the arena, and how the border moves."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from engine.device_weights import RETURN_S, DeviceWeights, StreamingNumbers
from engine.layers.layer_layout import LayerFormats, layer_layout
from engine.models.decoder_weights import make_weights, parameters
from engine.models.weights_placement import HostPlacement, WeightSizes
from kernels.linear import DenseFormat
from kernels.native.tiled_format import TiledFormat
from offload.arena import Arena, ArenaFull, aligned
from offload.residency import ResidencyOrder
from offload.transfer import TransferClass
from tests.fake_link import FakeLink
from tests.tiny_device_weights import (
    BLOCK_BYTES,
    CONFIG,
    FORMATS,
    LAYER_BYTES,
    NUM_LAYERS,
    SIZES,
    make_device_weights,
)


def test_the_ledger_names_everyone_and_the_border_moves_by_whole_units() -> None:
    weights, arena, _ = make_device_weights(num_streamed=0)
    for k in range(NUM_LAYERS + 1):
        weights.set_streamed(k)
        weights.check()
        ledger = arena.ledger()
        assert ledger["fixed weights"] == aligned(SIZES.fixed_bytes)
        assert ledger["slots"] == LAYER_BYTES
        assert ledger.get("resident layers", 0) == (NUM_LAYERS - k) * LAYER_BYTES
        blocks = (aligned(10_000) + k * LAYER_BYTES) // BLOCK_BYTES
        assert weights.num_kv_blocks == weights.kv_blocks_at(k) == blocks
        assert 0 <= ledger["free"] < BLOCK_BYTES
        assert sum(ledger.values()) == arena.capacity_bytes
    assert len(weights.kv_memory) == weights.max_kv_blocks * BLOCK_BYTES
    assert weights.host_bytes == NUM_LAYERS * LAYER_BYTES


def test_the_first_layer_to_be_streamed_lies_at_the_border() -> None:
    weights, arena, _ = make_device_weights(num_streamed=0)
    base = arena.region.data_ptr()
    places = {layer: weights.acquire(layer).tail.data_ptr() - base for layer in range(NUM_LAYERS)}
    in_order = [places[layer] for layer in ResidencyOrder.spread(NUM_LAYERS).layers]
    assert in_order == sorted(in_order)
    kv_end = weights.num_kv_blocks * BLOCK_BYTES
    assert kv_end <= in_order[0] < kv_end + BLOCK_BYTES + 256
    assert all(place % 256 == 0 for place in in_order)


def test_resident_layers_are_read_from_the_arena_and_the_host_keeps_its_copies() -> None:
    weights, arena, _ = make_device_weights(num_streamed=2)
    region = arena.region
    streamed = weights.streamed_layers
    assert streamed == (1, 3)
    weights.begin_step()
    for layer in range(NUM_LAYERS):
        slab = weights.acquire(layer)
        assert slab.tail.unique().tolist() == [layer + 1]
        assert region.data_ptr() <= slab.tail.data_ptr() < region.data_ptr() + len(region)
        assert slab.tail.data_ptr() != weights.slabs[layer].tail.data_ptr()
        weights.release(layer)
    assert weights.end_step().num_bytes == weights.step_bytes == 2 * LAYER_BYTES


def test_one_layer_less_is_streamed_once_its_copy_has_arrived() -> None:
    weights, arena, link = make_device_weights(num_streamed=2)
    link.advance_to_idle()
    before = weights.num_kv_blocks
    weights.set_streamed(0, deadline_s=5.0)
    assert weights.num_streamed == 2 and weights.is_moving
    assert weights.num_kv_blocks == weights.kv_blocks_at(1) < before
    assert arena.ledger()["resident layers"] == 3 * LAYER_BYTES
    assert weights._promotion is not None
    transfer = weights._promotion.transfer
    assert (transfer.transfer_class, transfer.num_bytes, transfer.deadline_s) == (
        TransferClass.BACKGROUND, LAYER_BYTES, 5.0,
    )  # fmt: skip
    weights.begin_step()
    assert weights.num_streamed == 2
    weights.end_step()
    link.advance_to_idle()
    weights.begin_step()  # flips the first, starts the second
    assert weights.num_streamed == 1 and weights.num_kv_blocks == weights.kv_blocks_at(0)
    weights.check()
    weights.end_step()
    link.advance_to_idle()
    weights.begin_step()
    assert weights.num_streamed == 0 and not weights.is_moving
    assert [weights.acquire(layer).tail.unique().tolist() for layer in range(NUM_LAYERS)] == [[1], [2], [3], [4]]
    weights.end_step()


def test_a_copy_back_that_fails_leaves_the_layer_streamed(caplog: pytest.LogCaptureFixture) -> None:
    weights, _, link = make_device_weights(num_streamed=2)
    link.advance_to_idle()
    weights.set_streamed(1)
    assert weights._promotion is not None
    link.fail(weights._promotion, OSError("a fault"))
    link.advance_to_idle()
    weights.begin_step()
    assert weights.num_streamed == 2 and not weights.is_moving and weights.num_failed_promotions == 1
    assert weights.num_kv_blocks == weights.kv_blocks_at(2)
    assert "stays on the host, its copy to the device failed: a fault" in caplog.text
    weights.check()
    weights.end_step()
    weights.set_streamed(1)
    link.advance_to_idle()
    weights.begin_step()
    assert weights.num_streamed == 1


def test_more_layers_wanted_while_one_is_on_its_way_back_wait_for_it() -> None:
    weights, _, link = make_device_weights(num_streamed=2)
    link.advance_to_idle()
    weights.set_streamed(1)
    weights.set_streamed(4)
    assert weights.num_streamed == 2 and weights.num_kv_blocks == weights.kv_blocks_at(1)
    weights.check()
    link.advance_to_idle()
    weights.set_streamed(4)
    assert weights.num_streamed == 4 and weights.num_kv_blocks == weights.kv_blocks_at(4)
    weights.check()


def test_parts_of_layers_stay_where_the_rest_is_streamed() -> None:
    parts = SIZES.layer_part_bytes[0]
    assert len(parts) == 5 and sum(parts) == LAYER_BYTES
    down = parts[-1]
    weights, arena, _ = make_device_weights(num_streamed=NUM_LAYERS, num_slots=2, unit_bytes=down)
    assert arena.ledger()["fixed weights"] == aligned(SIZES.fixed_bytes) + NUM_LAYERS * (LAYER_BYTES - down)
    weights.begin_step()
    for layer in range(NUM_LAYERS):
        slab = weights.acquire(layer)
        assert (len(slab.head), len(slab.tail)) == (LAYER_BYTES - down, down)
        assert slab.head.unique().tolist() == slab.tail.unique().tolist() == [layer + 1]
        weights.release(layer)
    assert weights.end_step().num_bytes == NUM_LAYERS * down


def test_nothing_streamed_ever_takes_no_slot_and_no_host_memory() -> None:
    weights, arena, _ = make_device_weights(0, 0, 0, num_slots=0)
    assert weights.host_bytes == 0 and weights.step_bytes == 0 and weights.streamed_layers == ()
    assert "slots" not in arena.ledger()
    weights.begin_step()
    assert weights.acquire(2).num_bytes == LAYER_BYTES
    assert weights.end_step().num_loads == 0


def test_what_does_not_fit_is_refused_with_the_ledger() -> None:
    with pytest.raises(ArenaFull, match=r"resident layers needs .* are free \(held: fixed weights .*--device-memory"):
        make_device_weights(spare_bytes=-1000)
    make_device_weights(num_streamed=2, min_streamed=2, spare_bytes=0)
    with pytest.raises(ValueError, match="1 streamed layers: the plan has 2 to 4"):
        make_device_weights(num_streamed=2, min_streamed=2)[0].set_streamed(1)


def test_numbers_that_do_not_fit_each_other_are_refused() -> None:
    order, units = ResidencyOrder.spread(4), (10,) * 4
    with pytest.raises(ValueError, match="1 layers streamed at start, at least 2, at most 3 of 4"):
        StreamingNumbers(order, units, 1, 2, 3, 1)
    with pytest.raises(ValueError, match="4 units and 0 slots for 4 layers, of which 3 may be streamed"):
        StreamingNumbers(order, units, 1, 0, 3, 0)
    link = FakeLink()
    with pytest.raises(ValueError, match="the plan has 5 layers, the model 4"):
        numbers = StreamingNumbers(ResidencyOrder.spread(5), (10,) * 5, 0, 0, 5, 1)
        DeviceWeights(SIZES, Arena(10**6), link, numbers, BLOCK_BYTES)
    with pytest.raises(ValueError, match=r"999,999 bytes are streamed of layer 3, which has"):
        DeviceWeights(SIZES, Arena(10**6), link, StreamingNumbers(order, (999_999,) * 4, 0, 0, 4, 1), BLOCK_BYTES)


def test_a_step_without_an_end_holds_the_set_of_layers() -> None:
    weights, _, _ = make_device_weights()
    weights.begin_step()
    with pytest.raises(RuntimeError, match="between steps only"):
        weights.set_streamed(3)


def test_the_sizes_are_what_the_weights_take() -> None:
    placement = HostPlacement(SIZES)
    weights = make_weights(CONFIG, FORMATS, placement)
    fixed = {p.name: p for p in parameters(weights) if len(p.shape) == 1 or p.name in ("embedding", "head")}
    assert sum(aligned(p.data.nbytes) for p in fixed.values()) == SIZES.fixed_bytes
    starts = sorted((p.data.data_ptr(), p.data.nbytes) for p in parameters(weights))
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(starts)), "parameters overlap"
    base = placement.fixed.data_ptr()
    assert all(base <= p.data.data_ptr() < base + SIZES.fixed_bytes for p in fixed.values())


@pytest.mark.parametrize(
    "weight_format", [DenseFormat(torch.float32), TiledFormat(torch.bfloat16)], ids=["torch", "native"]
)
def test_a_slab_is_cut_where_matrices_begin(weight_format: DenseFormat | TiledFormat) -> None:
    layout = layer_layout(CONFIG, LayerFormats.uniform(weight_format))
    is_native = isinstance(weight_format, TiledFormat)
    parts = WeightSizes(0, (layout,)).layer_part_bytes[0]
    starts = [sum(parts[:index]) for index in range(len(parts))]
    places = (layout.query, layout.output, layout.gate, *([layout.up] if is_native else []), layout.down)
    assert starts == [place.offset_bytes for place in places]
    assert all(start % 256 == 0 for start in starts) and sum(parts) == layout.num_bytes


def test_layers_are_cut_alike_though_one_of_them_could_be_cut_more_often() -> None:
    formats = [LayerFormats.uniform(TiledFormat(torch.bfloat16)), LayerFormats.uniform(DenseFormat(torch.float32))]
    sizes = WeightSizes(0, tuple(layer_layout(CONFIG, each) for each in formats))
    assert [len(parts) for parts in sizes.layer_part_bytes] == [4, 4]
    assert tuple(map(sum, sizes.layer_part_bytes)) == sizes.layer_bytes


def test_a_copy_back_arrives_though_streamed_layers_keep_the_link_busy() -> None:
    """Every step waits for the link; the copy goes ahead of a layer once its time has come, not before."""
    weights, _, link = make_device_weights(num_streamed=4, num_slots=2)

    def step() -> None:
        weights.begin_step(link.now_s())
        for layer in range(NUM_LAYERS):
            weights.acquire(layer)
            weights.release(layer)
        weights.end_step()

    step()
    weights.set_streamed(3)
    begin_s = link.now_s()
    while weights.num_streamed == 4:
        step()
        weights.check()
        assert link.now_s() < begin_s + 2 * RETURN_S
    assert link.now_s() > begin_s + RETURN_S / 2
    weights.set_streamed(2, deadline_s=math.inf)
    for _ in range(30):
        step()
    assert weights.num_streamed == 3
    link.advance_to_idle()
    step()
    assert weights.num_streamed == 2
