"""Weights and KV blocks over one link and in one memory: the border between them moves, and the text stays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.kv_cache import KVCache
from engine.kv_tier_manager import KVTierManager
from engine.result_bell import ResultBell
from engine.tiered_offload import TieredOffload
from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from offload.host_tier import HostTier
from offload.kv_host_pool import KVHostPool
from offload.kv_offload import KVOffload
from offload.load_parts import first_layers
from scheduler.kv_transfer import TierConfig
from tests.fake_link import FakeLink
from tests.in_process_engine import InProcessEngine
from tests.kv_tiers import InlineLanes
from tests.offload_rig import NUM_LAYERS, OPTIONS, Rig
from tests.tiny_model import VOCAB_SIZE, make_tiny_llama

NUM_HOST_SLOTS = 60
NUM_PARTS = 3
PROMPTS = [[(number * 31 + place * 7 + place * place) % VOCAB_SIZE for place in range(37)] for number in range(4)]
LINK_BYTES_PER_S = 5e7


@dataclasses.dataclass
class Served:
    """An engine, and what moves beside it."""

    engine: InProcessEngine
    rig: Rig
    manager: KVTierManager
    pool: KVHostPool

    def round(self, number: int) -> list[list[int]]:
        """All prompts at once; the link goes on between steps, and for long after the last."""
        names = [f"{number}.{index}" for index in range(len(PROMPTS))]
        for name, prompt in zip(names, PROMPTS, strict=True):
            self.engine.submit(name, [prompt], max_tokens=10)
        while self.engine._inbox or self.engine.core.num_live_choices:
            self.turn()
        for _ in range(300):
            self.engine.clock.advance(0.02)
            self.turn()
        assert self.manager.num_open == 0
        return [self.engine.generated[name, 0].token_ids for name in names]

    def turn(self) -> None:
        self.engine.turn()
        self.rig.offload.check()
        self.manager.check()
        self.rig.link.advance(1e-3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("streamed_tiers"), num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def whole(path: Path, native_library: NativeLibrary) -> LoadedModel:
    """Native kernels: a row's bits depend on no other row."""
    return load_model(str(path), "float32", lambda _: None, library=native_library)


@pytest.fixture
def served(path: Path, native_library: NativeLibrary) -> Iterator[Served]:
    rig = Rig(path, native_library, link=FakeLink(LINK_BYTES_PER_S))
    assert rig.weights is not None and rig.plan is not None
    num_blocks, block_bytes = rig.weights.max_kv_blocks, rig.plan.block_bytes
    host_tier = HostTier()
    pool = KVHostPool(host_tier, NUM_HOST_SLOTS, block_bytes)
    bell = ResultBell()
    blocks = rig.weights.kv_memory.view(num_blocks, block_bytes)
    mover = KVOffload(
        rig.link, blocks, pool, None, NUM_PARTS, num_layers=NUM_LAYERS, check_share=1.0, record_event=lambda: None,
        on_done=bell.ring, lanes=InlineLanes(),
    )  # fmt: skip
    manager = KVTierManager(mover, first_layers(NUM_LAYERS, NUM_PARTS), rig.link.now_s)

    def join(kv_cache: KVCache) -> TieredOffload:
        return TieredOffload(rig.manager(kv_cache), manager, rig.link, host_tier, bell)

    engine = InProcessEngine(
        rig.model, num_blocks=num_blocks, kv_memory=rig.weights.kv_memory, gate=manager, make_offload=join,
        library=native_library, tiers=TierConfig(NUM_HOST_SLOTS, 0, block_bytes, NUM_PARTS), **OPTIONS,
    )  # fmt: skip
    yield Served(engine, rig, manager, pool)
    manager.close()
    rig.link.close()


def test_rounds_of_prompts_while_layers_come_and_go(served: Served, whole: LoadedModel) -> None:
    expected = InProcessEngine(whole, num_blocks=200, **OPTIONS).generate(PROMPTS, max_tokens=10)
    borders = set()
    weights = served.rig.weights
    assert weights is not None
    for number in range(3):
        assert served.round(number) == expected
        borders.add(weights.num_streamed)
    stats = served.engine.stats
    assert stats is not None and stats.kv_tiers is not None and stats.offload is not None
    assert stats.offload.num_raised > 0 and stats.offload.num_lowered > 0, "the border never moved"
    assert stats.kv_tiers.hit_tokens["host"] > 0
    assert stats.kv_tiers.num_transfers["load"]["done"] > 0
    assert stats.num_blocks_used == 0


def test_blocks_that_rot_beside_streamed_weights_are_computed_again(served: Served, whole: LoadedModel) -> None:
    expected = InProcessEngine(whole, num_blocks=200, **OPTIONS).generate(PROMPTS, max_tokens=10)
    assert served.round(0) == expected
    served.pool.blocks[:, 3] ^= 0x21
    assert served.round(1) == expected
    stats = served.engine.stats
    assert stats is not None and stats.kv_tiers is not None
    assert stats.kv_tiers.num_transfers["load"]["corrupt"] > 0
