"""From options to KV tiers: what is opened, what is found again, and what ends a start."""

from __future__ import annotations

import dataclasses
import logging
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from engine.attention_kind import AttentionKind
from engine.config import EngineConfig
from engine.errors import EngineStartError
from engine.kv_identity import identify_kv
from engine.kv_tier_setup import (
    KVRegion,
    OpenTiers,
    check_kv_tier_options,
    open_kv_tiers,
    open_kv_tiers_beside,
    with_tiers,
)
from engine.model_config import ModelConfig
from engine.offload_setup import PlacedWeights
from engine.process_config import ProcessConfig
from engine.runner_factory import BuiltRunner
from engine.tiered_offload import TieredOffload
from kernels.rotary import LongScaling, Rope
from offload.config import OffloadConfig
from offload.cpu_device import CpuDevice
from offload.errors import OffloadError
from offload.host_link import HostLink
from offload.host_tier import HostMemoryError, HostTier
from offload.kv_host_pool import OWNER
from offload.link_config import LinkConfig
from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import KVTransfer, Purpose, TransferKind
from scheduler.link import ClassFloor, LinkDirection, LinkSnapshot
from scheduler.output import SchedulerOutput
from tests.fakes import FakeRunner
from tests.scripted_offload import ScriptedOffload

MODEL = ModelConfig(
    architecture="llama", num_layers=10, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
    intermediate_size=128, vocab_size=64, max_position_tokens=4096, rms_norm_eps=1e-5,
    attention_kinds=(AttentionKind(Rope(1e4, 16)),),
)  # fmt: skip
BLOCK_SIZE = 16
BLOCK_BYTES = 10 * 2 * BLOCK_SIZE * 2 * 16 * 4
NUM_BLOCKS = 8
KEY = bytes(range(32))
MakeConfig = Callable[..., ProcessConfig]


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    model_path = tmp_path / "model"
    model_path.mkdir()
    (model_path / "config.json").write_text("{}")

    def make(*, is_restart: bool = False, caches: bool = True, **options: Any) -> ProcessConfig:
        return ProcessConfig(
            engine=EngineConfig(str(model_path)),
            scheduler=SchedulerConfig(block_size=BLOCK_SIZE, enable_prefix_caching=caches),
            inbox_endpoint="",
            outbox_endpoint="",
            parent_pid=1,
            offload=OffloadConfig(**options),
            is_restart=is_restart,
        )

    return make


@pytest.fixture
def opened() -> Iterator[Callable[[ProcessConfig], tuple[KVRegion, OpenTiers]]]:
    with ExitStack() as stack:

        def open_(config: ProcessConfig) -> tuple[KVRegion, OpenTiers]:
            region, tiers = open_kv_tiers(config, MODEL, torch.float32, NUM_BLOCKS, 200, None)
            stack.callback(close, tiers)
            return region, tiers

        yield open_


Open = Callable[[ProcessConfig], tuple[KVRegion, OpenTiers]]


def close(tiers: OpenTiers) -> None:
    tiers.link.close()
    tiers.gate.close()
    tiers.host_tier.close()


def move(tiers: OpenTiers, transfer_id: int, kind: TransferKind, device: tuple[int, ...]) -> None:
    """One block, in slot 0, to its end."""
    positions = (0,) if kind is TransferKind.WRITE else ()
    transfer = KVTransfer(transfer_id, kind, Purpose.ADMITTED, (KEY,), device, (0,), positions=positions)
    ended = False
    tiers.gate.begin(SchedulerOutput(0, 0.0, (), transfers=(transfer,)), 0.0)
    while not ended:
        results = tiers.gate.collect()
        assert all(result.is_done for result in results)
        ended = bool(results)


def test_the_hosts_memory_is_cut_into_slots(make_config: MakeConfig, opened: Open) -> None:
    region, tiers = opened(make_config(host_memory_bytes=5 * BLOCK_BYTES + 7))
    assert region.block_bytes == BLOCK_BYTES == 20480 * 2
    assert region.blocks.shape == (NUM_BLOCKS, BLOCK_BYTES)
    assert (tiers.config.num_host_slots, tiers.config.block_bytes) == (5, BLOCK_BYTES)
    assert (tiers.config.num_disk_blocks, tiers.config.disk_hashes) == (0, ())
    assert tiers.config.num_load_parts == 8, "10 layers of 4 KiB a block, at most 8 parts"
    assert tiers.host_tier.ledger()[OWNER] == 5 * BLOCK_BYTES
    tiers.gate.check()


def test_small_blocks_come_in_fewer_parts(make_config: MakeConfig) -> None:
    kinds = (AttentionKind(Rope(1e4, 4)),)
    small = dataclasses.replace(MODEL, num_kv_heads=1, head_dim=4, num_heads=16, attention_kinds=kinds)
    _, tiers = open_kv_tiers(make_config(host_memory_bytes=2**20), small, torch.float32, NUM_BLOCKS, 200, None)
    assert tiers.config.block_bytes == 5120 and tiers.config.num_load_parts == 1
    close(tiers)


def test_a_restarted_server_finds_its_blocks(
    make_config: MakeConfig, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(disk_path=str(tmp_path / "disk"), disk_bytes=1 << 20)
    check_kv_tier_options(config)
    region, tiers = opened(config)
    assert tiers.config.num_host_slots == 64, "enough for what is on its way, and for the longest request"
    assert 10 < tiers.config.num_disk_blocks <= (1 << 20) // BLOCK_BYTES
    region.memory.copy_(torch.arange(len(region.memory)) % 251)
    before = region.blocks[3].clone()
    move(tiers, 1, TransferKind.STORE, (3,))
    move(tiers, 2, TransferKind.WRITE, ())
    close(tiers)
    with caplog.at_level(logging.INFO):
        region, tiers = opened(config)
    assert tiers.config.disk_hashes == (KEY,)
    assert "1 were found there" in caplog.text and "64 slots of 40.0 KiB" in caplog.text
    move(tiers, 1, TransferKind.READ, ())
    move(tiers, 2, TransferKind.LOAD, (7,))
    assert torch.equal(region.blocks[7], before)


def test_a_directory_in_use_ends_a_start_but_no_restart(
    make_config: MakeConfig, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"disk_path": str(tmp_path), "disk_bytes": 1 << 20}
    opened(make_config(**options))
    with pytest.raises(OffloadError, match="is in use by process"):
        opened(make_config(**options))
    _, tiers = opened(make_config(**options, is_restart=True))
    assert tiers.config.num_disk_blocks == 0 and tiers.config.num_host_slots == 64
    assert "goes on without its disk" in caplog.text


def test_an_emulated_link_is_as_fast_as_it_shall_be(make_config: MakeConfig, opened: Open) -> None:
    _, tiers = opened(make_config(host_memory_bytes=2**20, link_gbps=0.02))
    status = tiers.link.snapshot()
    assert (status.h2d.p50_bytes_per_s, status.d2h.p50_bytes_per_s) == (0.02e9, 0.02e9)
    _, tiers = opened(make_config(host_memory_bytes=2**20))
    assert tiers.link.snapshot().h2d.p50_bytes_per_s > 0.02e9


def test_more_than_the_machine_has_ends_the_start(make_config: MakeConfig, opened: Open) -> None:
    with pytest.raises(HostMemoryError, match=r"kv needs .* bytes of host memory"):
        opened(make_config(host_memory_bytes=2**50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_memory_bytes": 2**20}, "--host-memory keeps KV blocks .* --no-enable-prefix-caching forbids"),
        ({"disk_path": "/nowhere"}, "--disk-path keeps KV blocks .* --no-enable-prefix-caching forbids"),
    ],
)
def test_tiers_need_the_prefix_cache(make_config: MakeConfig, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineStartError, match=message):
        check_kv_tier_options(make_config(caches=False, **options))
    check_kv_tier_options(make_config(caches=False, device_memory_bytes=2**30))


def test_a_path_that_is_no_directory_is_found_before_anything_is_loaded(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EngineStartError, match=f"--disk-path {file} is a file; give a directory"):
        check_kv_tier_options(make_config(disk_path=str(file)))
    with pytest.raises(EngineStartError, match="cannot be used: Not a directory"):
        check_kv_tier_options(make_config(disk_path=str(file / "below")))


def test_a_disk_that_is_gone_ends_no_restart(
    make_config: MakeConfig, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    config = make_config(disk_path=str(file), is_restart=True)
    check_kv_tier_options(config)
    _, tiers = opened(config)
    assert tiers.config.num_disk_blocks == 0
    assert "goes on without its disk: --disk-path" in caplog.text


class Beside:
    """Weights on the host, and the tiers that get what they leave."""

    def __init__(self, limit_bytes: int | None, weights_bytes: int, available_bytes: int | None = None) -> None:
        self.device = CpuDevice(lambda: available_bytes)
        self.link = HostLink(LinkConfig(1e9, 1e9))
        self.host_tier = HostTier(limit_bytes)
        self.host_tier.take("weights", (weights_bytes,))
        self.region = KVRegion(
            MODEL, torch.float32, NUM_BLOCKS, BLOCK_SIZE, torch.zeros(NUM_BLOCKS * BLOCK_BYTES, dtype=torch.uint8)
        )

    def open(self, config: ProcessConfig) -> OpenTiers | None:
        """None: there are none, and everything is closed."""
        placed = cast(PlacedWeights, types.SimpleNamespace(host_tier=self.host_tier, link=self.link))
        tiers = open_kv_tiers_beside(config, self.region, 200, None, self.device, placed)
        if tiers is None:
            self.link.close()
            self.host_tier.close()
        return tiers


def test_kv_gets_what_streamed_weights_leave(make_config: MakeConfig) -> None:
    limit = 10 * BLOCK_BYTES
    beside = Beside(limit, 6 * BLOCK_BYTES)
    tiers = beside.open(make_config(device_memory_bytes=2**30, host_memory_bytes=limit))
    assert tiers is not None and tiers.config.num_host_slots == 4
    assert tiers.link is beside.link and tiers.host_tier is beside.host_tier
    close(tiers)


def test_weights_that_leave_nothing_leave_kv_on_the_device(
    make_config: MakeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 10 * BLOCK_BYTES
    with caplog.at_level(logging.INFO):
        assert Beside(limit, limit).open(make_config(device_memory_bytes=2**30, host_memory_bytes=limit)) is None
    assert "no host memory is left for KV blocks" in caplog.text


def test_nobody_who_does_without_the_prefix_cache_gets_tiers_unasked(make_config: MakeConfig) -> None:
    assert Beside(None, 256).open(make_config(device_memory_bytes=2**30, caches=False)) is None
    assert Beside(None, 256).open(make_config(device_memory_bytes=2**30, host_memory_bytes=0)) is None


def test_weights_in_a_file_and_blocks_in_memory_share_one_limit(make_config: MakeConfig, tmp_path: Path) -> None:
    limit = 10 * BLOCK_BYTES
    beside = Beside(limit, 6 * BLOCK_BYTES)
    tiers = beside.open(
        make_config(device_memory_bytes=2**30, host_memory_bytes=limit, host_memory_directory_path=str(tmp_path))
    )
    assert tiers is not None and tiers.host_tier is not beside.host_tier
    assert tiers.config.num_host_slots == 4
    assert list(tiers.host_tier.ledger().values()) == [4 * BLOCK_BYTES, 0, 0]
    close(tiers)


def test_a_runner_with_tiers_gives_all_of_it_back(make_config: MakeConfig, opened: Open) -> None:
    _, tiers = opened(make_config(host_memory_bytes=2**20))
    built = BuiltRunner(FakeRunner(NUM_BLOCKS, BLOCK_SIZE), NUM_BLOCKS, 100, 100, 64, (), "float32", "cpu", 0, 0, 1)
    assert with_tiers(built, None) is built
    tiered = with_tiers(built, tiers)
    assert tiered.tiers is tiers.config
    snapshot = tiered.offload.snapshot()
    assert snapshot.h2d.p50_bytes_per_s == tiers.link.snapshot().h2d.p50_bytes_per_s > 0
    assert tiered.offload.stats() is None, "no weights are streamed"
    counted = tiered.offload.kv_bytes()
    assert counted is not None and counted.block_bytes == BLOCK_BYTES
    tiered.offload.verify()
    assert tiered.offload.wakeup_s() is None
    for _ in range(2):
        tiered.offload.close()
    assert tiers.host_tier.used_bytes == 0


def test_the_scheduler_sees_weights_and_blocks_on_one_link(make_config: MakeConfig, opened: Open) -> None:
    """Of the weights' manager: which blocks and classes there are; of the link: its speed and what waits for it."""
    _, tiers = opened(make_config(host_memory_bytes=2**20, link_gbps=0.001))
    placement = LinkSnapshot(num_streamed_layers=3, num_blocks=5, classes=(ClassFloor("standard"),))
    offload = TieredOffload(ScriptedOffload(placement), tiers.gate, tiers.link, tiers.host_tier, tiers.bell)
    snapshot = offload.snapshot()
    status = tiers.link.snapshot()
    assert dataclasses.replace(
        snapshot, h2d=LinkDirection(), d2h=LinkDirection(), coupling=1.0, kv_link_share=0.0
    ) == placement  # fmt: skip
    assert (snapshot.h2d.p5_bytes_per_s, snapshot.kv_link_share) == (1e6, status.kv_link_share)
    blocks = tuple(range(4))
    hashes = tuple(bytes([number]) * 32 for number in blocks)
    store = KVTransfer(1, TransferKind.STORE, Purpose.FREES_BLOCKS, hashes, blocks, blocks)
    offload.begin(SchedulerOutput(0, 0.0, (), transfers=(store,)), 0.0)
    assert offload.snapshot().d2h.queued_kv_store_bytes > 3 * BLOCK_BYTES, "160 KiB at 1 MB/s"


def test_what_the_bytes_depend_on_is_in_their_identity(make_config: MakeConfig) -> None:
    engine = make_config().engine

    def identity(
        engine: EngineConfig = engine, model: ModelConfig = MODEL, dtype: torch.dtype = torch.float32, size: int = 16
    ) -> str:
        return identify_kv(engine, model, dtype, size, None).digest

    long = LongScaling((1.0,) * 8, (2.0,) * 8, 128, 512)
    stretched = dataclasses.replace(MODEL, attention_kinds=(AttentionKind(Rope(1e4, 16, scaling=long)),))
    windowed = dataclasses.replace(MODEL, attention_kinds=(AttentionKind(Rope(1e4, 16), sliding_window=64),))
    different = [
        identity(),
        identity(size=32),
        identity(dtype=torch.bfloat16),
        identity(dataclasses.replace(engine, quantize="int8")),
        identity(dataclasses.replace(engine, dtype="float32")),
        identity(dataclasses.replace(engine, batch_invariant=True)),
        identity(model=windowed),
        identity(model=stretched),
        identity(model=dataclasses.replace(stretched, attention_kinds=(stretched.attention_kinds[0].for_context(99),))),
    ]
    assert len(set(different)) == len(different)
    assert identity() == identity(dataclasses.replace(engine, threads=7, event_log_path="/log"))
    config_file = Path(engine.model_path) / "config.json"
    config_file.write_text('{"revision": 2}')
    assert identity() not in different


def test_fewer_slots_than_the_longest_prompt_has_blocks_are_warned_of(
    make_config: MakeConfig, opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """200 tokens are 13 blocks of 40 KiB."""
    disk = {"disk_path": str(tmp_path / "disk"), "disk_bytes": 1 << 20}
    _, tiers = opened(make_config(host_memory_bytes=4 * BLOCK_BYTES, **disk))
    close(tiers)
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert warning.getMessage() == (
        "KV on disk: 4 of 13 blocks of the longest prompt can come from the disk at a time; raise --host-memory to 1MiB"
    )
    caplog.clear()
    _, tiers = opened(make_config(host_memory_bytes=2**20, **disk))
    close(tiers)
    beside = Beside(20 * BLOCK_BYTES, 16 * BLOCK_BYTES)
    tiers = beside.open(make_config(device_memory_bytes=2**30, host_memory_bytes=20 * BLOCK_BYTES))
    assert tiers is not None and tiers.config.num_host_slots == 4
    close(tiers)
    assert not caplog.records, "enough of them, or no disk"
    tiers = Beside(40 * BLOCK_BYTES, 36 * BLOCK_BYTES).open(
        make_config(device_memory_bytes=2**30, host_memory_bytes=40 * BLOCK_BYTES, **disk)
    )
    assert tiers is not None
    close(tiers)
    assert "4 of 13 blocks" in caplog.text and "--host-memory to 2MiB" in caplog.text, "with 36 blocks of weights"
