"""Prefixes that left the device come back from host and disk, and the text is that of an engine that computes all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.replay import replay
from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from tests.in_process_engine import InProcessEngine
from tests.tiered_engine import BLOCK_SIZE, TieredEngine
from tests.tiny_model import VOCAB_SIZE

OPTIONS = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
NUM_BLOCKS = 16
PROMPT_TOKENS = 40
"""10 blocks: two prompts do not fit the device together."""
MakeEngine = Callable[..., TieredEngine]


def prompt(number: int) -> list[int]:
    return [(number * 31 + place * 7 + place * place) % VOCAB_SIZE for place in range(PROMPT_TOKENS)]


@pytest.fixture(scope="module", params=["torch", "native"])
def library(request: pytest.FixtureRequest) -> NativeLibrary | None:
    return None if request.param == "torch" else request.getfixturevalue("native_library")


@pytest.fixture(scope="module")
def model(tiny_model_path: Path, library: NativeLibrary | None) -> LoadedModel:
    return load_model(str(tiny_model_path), "float32", lambda _: None, library=library, batch_invariant=True)


@pytest.fixture(scope="module")
def expected(model: LoadedModel) -> list[list[int]]:
    """Of prompts 0 to 5, each computed alone and whole."""
    return [
        InProcessEngine(model, num_blocks=64, block_size=BLOCK_SIZE, **OPTIONS).generate([prompt(number)])[0]
        for number in range(6)
    ]


@pytest.fixture
def make_engine(model: LoadedModel, library: NativeLibrary | None) -> Iterator[MakeEngine]:
    made: list[TieredEngine] = []

    def make(**options: object) -> TieredEngine:
        arguments = {"num_blocks": NUM_BLOCKS, "num_host_slots": 64, "library": library, **OPTIONS, **options}
        made.append(TieredEngine(model, **arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def serve(engine: TieredEngine, number: int, name: str = "") -> list[int]:
    name = name or f"prompt {number}"
    engine.submit(name, [prompt(number)])
    engine.run()
    engine.settle()
    return engine.generated[name, 0].token_ids


def test_prompts_that_push_each_other_off_the_device_come_back_from_the_host(
    make_engine: MakeEngine, expected: list[list[int]]
) -> None:
    engine = make_engine()
    assert [serve(engine, number) for number in range(3)] == expected[:3]
    assert all(engine.num_cached_tokens[f"prompt {number}"] == 0 for number in range(3))
    for number in range(3):
        assert serve(engine, number, f"again {number}") == expected[number]
        assert engine.num_cached_tokens[f"again {number}"] >= PROMPT_TOKENS - BLOCK_SIZE
    assert engine.stats is not None and engine.stats.kv_tiers is not None
    assert engine.stats.kv_tiers.hit_tokens["host"] > 0
    assert engine.stats.kv_tiers.num_bytes["load"] > 0
    assert engine.stats.kv_tiers.block_bytes == engine.block_bytes


def test_a_restarted_engine_finds_its_prefixes_on_disk(
    make_engine: MakeEngine, expected: list[list[int]], tmp_path: Path
) -> None:
    first = make_engine(disk_path=tmp_path)
    assert [serve(first, number) for number in range(3)] == expected[:3]
    first.close()
    second = make_engine(disk_path=tmp_path)
    assert second.disk is not None and len(second.disk.hashes) >= 3 * (PROMPT_TOKENS // BLOCK_SIZE)
    for number in range(3):
        assert serve(second, number) == expected[number]
        assert second.num_cached_tokens[f"prompt {number}"] >= PROMPT_TOKENS - BLOCK_SIZE
    assert second.stats is not None and second.stats.kv_tiers is not None
    assert second.stats.kv_tiers.hit_tokens["disk"] > 0


def test_blocks_that_changed_on_the_host_are_computed_again_and_never_served(
    make_engine: MakeEngine, expected: list[list[int]]
) -> None:
    engine = make_engine()
    assert [serve(engine, number) for number in range(3)] == expected[:3]
    engine.pool.blocks[:, 5] ^= 0x10
    for number in range(3):
        assert serve(engine, number, f"again {number}") == expected[number]
    assert engine.stats is not None and engine.stats.kv_tiers is not None
    assert engine.stats.kv_tiers.num_transfers["load"]["corrupt"] > 0
    assert engine.stats.kv_tiers.num_failed_loads > 0


def test_blocks_that_changed_on_the_disk_are_computed_again_and_never_served(
    make_engine: MakeEngine, expected: list[list[int]], tmp_path: Path
) -> None:
    first = make_engine(disk_path=tmp_path)
    assert [serve(first, number) for number in range(2)] == expected[:2]
    first.close()
    files = sorted(tmp_path.rglob("*.kv"))
    assert files
    for file in files:
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    second = make_engine(disk_path=tmp_path)
    for number in range(2):
        assert serve(second, number) == expected[number]
        assert second.num_cached_tokens[f"prompt {number}"] == 0
    assert second.stats is not None and second.stats.kv_tiers is not None
    assert second.stats.kv_tiers.num_transfers["read"]["corrupt"] > 0


def test_a_step_computes_beside_a_slow_load_and_says_the_same(
    make_engine: MakeEngine, expected: list[list[int]]
) -> None:
    """A link on which the prefix of a prompt takes about as long as its steps."""
    engine = make_engine(bytes_per_s=2e6)
    passed: list[int] = []
    pass_layer = engine.tiers.pass_layer

    def noted(layer: int) -> None:
        passed.append(layer)
        pass_layer(layer)

    engine.tiers.pass_layer = noted  # type: ignore[method-assign]
    assert [serve(engine, number) for number in range(3)] == expected[:3]
    assert not passed
    for number in range(3):
        assert serve(engine, number, f"again {number}") == expected[number]
    assert len(passed) > 1 and passed[:2] == [0, 1], "no step began while its load was under way"


@pytest.mark.parametrize("num_host_slots", [1, 24, 80])
def test_many_at_once_in_a_device_that_holds_one(
    make_engine: MakeEngine, expected: list[list[int]], num_host_slots: int
) -> None:
    engine = make_engine(num_host_slots=num_host_slots)
    for round_number in range(3):
        for number in range(6):
            engine.submit(f"{round_number}.{number}", [prompt(number)])
        engine.run()
        for number in range(6):
            assert engine.generated[f"{round_number}.{number}", 0].token_ids == expected[number]
    engine.settle()
    assert engine.stats is not None and engine.stats.kv_tiers is not None
    assert (engine.stats.kv_tiers.hit_tokens.get("host", 0) > 0) == (num_host_slots > 60), "60 blocks take turns"


def test_what_was_decided_on_tiers_is_decided_again_by_a_replay(
    make_engine: MakeEngine, expected: list[list[int]], tmp_path: Path
) -> None:
    """With loads, failed ones, and a disk that held something before."""
    disk, log = tmp_path / "disk", tmp_path / "events.log"
    disk.mkdir()
    first = make_engine(disk_path=disk)
    assert [serve(first, number) for number in range(2)] == expected[:2]
    first.close()
    second = make_engine(disk_path=disk, num_host_slots=32, event_log_path=log)
    assert [serve(second, number) for number in range(4)] == expected[:4]
    second.pool.blocks[:, 5] ^= 0x10
    assert [serve(second, number, f"again {number}") for number in range(4)] == expected[:4]
    second.close()
    report = replay(log)
    assert report.num_processes == 1 and report.num_steps > 8


@pytest.mark.parametrize("is_shrunk", [False, True], ids=["others came", "a smaller disk"])
def test_of_two_long_prompts_a_restart_keeps_the_heads(
    make_engine: MakeEngine, tmp_path: Path, is_shrunk: bool
) -> None:
    """Prompts of 39 blocks; what goes of them on the disk after a restart goes from their ends."""
    places = range(39 * BLOCK_SIZE + 2)
    prompts = [[(number * 31 + place * 7 + place * place) % VOCAB_SIZE for place in places] for number in range(3)]

    def run(engine: TieredEngine, number: int) -> None:
        engine.submit(f"{number}", [prompts[number]], max_tokens=2)
        engine.run()
        engine.settle()

    def make(name: str, num_disk_blocks: int) -> TieredEngine:
        disk = tmp_path / name
        return make_engine(num_blocks=64, num_host_slots=60, disk_path=disk, num_disk_blocks=num_disk_blocks)

    engine = make("disk", 80)
    for number in (0, 1):
        run(engine, number)
    engine.close()
    num_left, size = 50, 50
    if not is_shrunk:
        engine = make("disk", 80)
        run(engine, 2)
        engine.close()
        assert engine.stats is not None and engine.stats.kv_tiers is not None
        num_left, size = 78 - engine.stats.kv_tiers.num_evictions["disk"], 80
        assert num_left <= 41, "39 blocks came, for 2 of which there was room"
    found = []
    for number in (0, 1):  # each in a server of its own: what is computed and written again makes others go
        shutil.copytree(tmp_path / "disk", tmp_path / f"copy {number}")
        engine = make(f"copy {number}", size)
        run(engine, number)
        found.append(engine.num_cached_tokens[f"{number}"] // BLOCK_SIZE)
    assert min(found) > 0 and sum(found) == num_left, f"{found} of {num_left} that are there"
