"""From caps and a record to placed weights: which memory bounds the plan, and what is said if there is too little."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention_kind import AttentionKind
from engine.config import EngineConfig
from engine.errors import EngineStartError
from engine.kv_cache import KVCache
from engine.model_config import ModelConfig
from engine.models.decoder_weights import DecoderFormats, weight_sizes
from engine.offload_setup import OffloadSetup, workspace_bytes
from kernels.native.tiled_format import TiledFormat
from kernels.rotary import Rope
from offload.config import OffloadConfig
from offload.cpu_device import CpuDevice
from offload.host_slabs import HostMemoryKind
from offload.host_tier import HostMemoryError, HostTier
from offload.link import LinkError
from offload.pinned_memory import PinnedBacking, PinTools
from offload.transfer import Direction, Transfer, TransferClass
from scheduler.config import SchedulerConfig
from scheduler.slo import DEFAULT_CLASSES, SLOClasses
from tests.fake_cudart import FakeCudart, any_bounce, no_bounce
from tests.record_builders import LINK_BYTES_PER_S, make_record

NUM_LAYERS = 8
MODEL = ModelConfig(
    architecture="llama", num_layers=NUM_LAYERS, hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64,
    intermediate_size=512, vocab_size=512, max_position_tokens=256, rms_norm_eps=1e-5,
    attention_kinds=(AttentionKind(Rope(1e4, 64)),),
)  # fmt: skip
SIZES = weight_sizes(MODEL, DecoderFormats.uniform(MODEL, TiledFormat(torch.bfloat16), torch.float32))
LAYER_BYTES = SIZES.layer_bytes[0]
SCHEDULER = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
KV_BYTES = 512 * 1024
TIGHT_BYTES = SIZES.fixed_bytes + 4 * LAYER_BYTES + KV_BYTES + workspace_bytes(MODEL, SCHEDULER, torch.bfloat16)
"""Two layers' worth of slots, two that stay: most must be streamed."""


class PinningDevice(CpuDevice):
    """Pins the host's memory if its runtime does, as a CUDA device."""

    def __init__(self, cudart: FakeCudart, allocate_bounce: Any = any_bounce) -> None:
        super().__init__()
        self.cudart = cudart
        self.allocate_bounce = allocate_bounce

    def open_host_tier(self, limit_bytes: int | None, directory: Path | None = None) -> HostTier:
        return HostTier(limit_bytes, PinnedBacking(PinTools(self.cudart, self.allocate_bounce), None, 4096))

    def link_share(self, kind: HostMemoryKind) -> float:
        return 1.0 if kind is HostMemoryKind.PINNED else 0.25


def make_setup(device: CpuDevice | None = None, **options: Any) -> OffloadSetup:
    """On a link of 0.5 GB/s, where copies take as long as computing."""
    config = OffloadConfig(**{"device_memory_bytes": TIGHT_BYTES, "link_gbps": 0.5, **options})
    return OffloadSetup(
        config, EngineConfig("model", dtype="bfloat16", threads=1), SCHEDULER, SLOClasses(DEFAULT_CLASSES, "standard"),
        make_record(), torch.bfloat16, device or CpuDevice(),
    )  # fmt: skip


def place(setup: OffloadSetup) -> OffloadSetup:
    setup.place(MODEL, SIZES)
    assert setup.placed is not None
    setup.placed.link.close()
    return setup


def test_weights_on_the_host_are_accounted_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    placed = place(make_setup()).placed
    assert placed is not None
    held = placed.plan.host_bytes
    assert held >= 4 * LAYER_BYTES and placed.host_tier.ledger()["weights"] == held == placed.weights.host_bytes
    placed.host_tier.check()
    assert f"host memory in MiB (anonymous): weights {held / 2**20:.1f}" in caplog.text


def test_a_file_holds_them_as_well(tmp_path: Path) -> None:
    placed = place(make_setup(host_memory_directory_path=str(tmp_path))).placed
    assert placed is not None and placed.host_tier.kinds == {HostMemoryKind.FILE}
    assert placed.plan.host_bytes == placed.weights.host_bytes


def test_a_cap_too_small_is_refused_with_value_limit_and_way_out() -> None:
    with pytest.raises(EngineStartError, match=r"the host holds 1\.0 MB.*Ways out: --host-memory of at least"):
        make_setup(host_memory_bytes=10**6).place(MODEL, SIZES)


def test_a_cap_bounds_what_may_be_streamed() -> None:
    free, bound = place(make_setup()).placed, place(make_setup(host_memory_bytes=6 * LAYER_BYTES)).placed
    assert free is not None and bound is not None
    assert free.plan.max_streamed_layers == NUM_LAYERS and bound.plan.host_bytes <= 6 * LAYER_BYTES
    assert bound.host_tier.ledger()["free"] == 6 * LAYER_BYTES - bound.plan.host_bytes


def test_main_memory_bounds_it_as_a_cap_does() -> None:
    """What the device takes of it is not there for the host."""
    with pytest.raises(EngineStartError, match=r"the host holds 1\.0 MB"):
        make_setup(CpuDevice(lambda: TIGHT_BYTES + 10**6)).place(MODEL, SIZES)
    bound = place(make_setup(CpuDevice(lambda: TIGHT_BYTES + 6 * LAYER_BYTES))).placed
    assert bound is not None and bound.plan.host_bytes <= 6 * LAYER_BYTES


def test_device_memory_that_the_machine_does_not_have_is_refused() -> None:
    with pytest.raises(EngineStartError, match=r"bytes of device memory.* 1,000 can be had.*--device-memory"):
        make_setup(CpuDevice(lambda: 1000)).place(MODEL, SIZES)


def test_pinned_memory_is_planned_with_at_full_speed() -> None:
    cudart = FakeCudart()
    placed = place(make_setup(PinningDevice(cudart), link_gbps=None)).placed
    assert placed is not None and placed.host_tier.kinds == {HostMemoryKind.PINNED} and cudart.registered
    assert placed.link.snapshot().h2d.p50_bytes_per_s == pytest.approx(LINK_BYTES_PER_S, rel=0.2)
    placed.host_tier.close()
    assert not cudart.registered


def test_memory_that_cannot_be_pinned_is_said_and_planned_anew(caplog: pytest.LogCaptureFixture) -> None:
    pinned = place(make_setup(PinningDevice(FakeCudart()))).placed
    placed = place(make_setup(PinningDevice(FakeCudart(lambda *_: True)))).placed
    assert pinned is not None and placed is not None
    assert placed.host_tier.kinds == {HostMemoryKind.PAGEABLE}
    assert placed.link.snapshot().h2d.p5_bytes_per_s == pytest.approx(0.125e9)
    assert placed.plan.predicted_step_s > 1.5 * pinned.plan.predicted_step_s
    assert "planned again with 0.125 GB/s" in caplog.text and "not pinned" in caplog.text
    assert len(placed.host_tier.ledger()) == 2 and placed.host_tier.ledger()["weights"] == placed.plan.host_bytes
    placed.host_tier.check()


def test_neither_pinned_nor_bounced_is_refused() -> None:
    with pytest.raises(HostMemoryError, match=r"bounce buffer.*--host-memory"):
        make_setup(PinningDevice(FakeCudart(lambda *_: True), no_bounce)).place(MODEL, SIZES)


def test_the_cap_of_a_link_stays_where_copies_are_slower_still() -> None:
    """What the link is held to is the user's cap; what is expected of it is what the memory reaches."""
    caps: list[dict[Direction, float]] = []

    class Watching(PinningDevice):
        def open_link(self, config: Any, caps_bytes_per_s: Any) -> Any:
            caps.append(dict(caps_bytes_per_s))
            return super().open_link(config, caps_bytes_per_s)

    place(make_setup(Watching(FakeCudart(lambda *_: True))))
    assert caps == [dict.fromkeys(Direction, 0.5e9)]


def test_the_end_of_service_ends_the_link_and_unpins() -> None:
    cudart = FakeCudart()
    setup = make_setup(PinningDevice(cudart))
    setup.place(MODEL, SIZES)
    assert setup.placed is not None
    link, num_blocks = setup.placed.link, setup.placed.weights.max_kv_blocks
    kv_cache = KVCache(MODEL, torch.bfloat16, num_blocks, SCHEDULER.block_size, setup.placed.weights.kv_memory)
    manager = setup.manager(kv_cache)
    setup.placed.weights.loaded()
    manager.check()
    assert cudart.registered
    manager.close()
    manager.close()
    assert not cudart.registered and setup.placed.host_tier.used_bytes == 0
    source = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(LinkError, match="closed"):
        link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, source, source.clone(), 0.0))


def test_options_of_the_host_have_no_use_without_a_cap_of_the_device() -> None:
    with pytest.raises(ValueError, match="host_memory_directory_path"):
        OffloadConfig(host_memory_directory_path="/tmp")
    assert dataclasses.asdict(OffloadConfig())["host_memory_directory_path"] is None
