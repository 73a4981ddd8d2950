"""A real server with little device memory and KV tiers, asked by OpenAI's own client: what it says is exact.

The device holds 1,024 tokens, the host 768, the disk some 4,900; all prompts together have more. Steps are not
predicted: whether to load or to compute would depend on the machine. With predictions, and every kind of damage, the
same is asked for half an hour in `test_kv_tier_soak`.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernels.native_library import NativeLibrary
from tests.headrace_process import HeadraceProcess
from tests.kv_dialogues import (
    MAX_CHOICES,
    MODEL,
    Answer,
    Manner,
    Question,
    ask,
    ask_all,
    ask_reference,
    difference,
    open_client,
)
from tests.kv_faults import block_files, flip_byte, limit_files, remove_everything, strike
from tests.kv_service import KVService, read_metrics

pytestmark = pytest.mark.timeout(180)

MODEL_OPTIONS = (
    "--served-model-name", MODEL, "--dtype", "float32", "--threads", "1", "--kernels", "native", "--no-predict-steps",
)  # fmt: skip
TIERS = ("--kv-cache-memory", "1MiB", "--host-memory", "768KiB", "--disk-size", "6MiB", "--kv-checksum", "always")
DISK_LIMIT = 'headrace_kv_tier_blocks_limit{tier="disk"}'
NUM_AT_ONCE = 6
WAIT_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Tiered:
    """A server, its directory, and what is right."""

    service: KVService
    disk_path: Path
    known: dict[Question, Answer]

    def check(self, questions: list[Question], seed: int, **manner: object) -> Counter[str]:
        """Ask them at once, in manners of all kinds; every answer is right. Cached prompt tokens by tier."""
        rng = random.Random(seed)
        asked = [(question, _manner(rng, **manner)) for question in questions]
        with open_client(self.service.url) as client:
            answers = ask_all(client, asked, NUM_AT_ONCE)
        for (question, how), answer in zip(asked, answers, strict=True):
            assert difference(answer, self.known[question], how) is None
        by_tier: Counter[str] = Counter()
        for answer in answers:
            by_tier.update(answer.cached_by_tier or {})
        return by_tier

    def metrics(self) -> dict[str, float]:
        return read_metrics(self.service.url)

    def transfers(self, kind: str, outcome: str) -> float:
        return self.metrics()[f'headrace_kv_transfers_total{{kind="{kind}",outcome="{outcome}"}}']

    def settle(self) -> None:
        """Until what the host holds is on the disk, as far as it will be: nothing is written any more."""
        seen: list[float] = []
        deadline_s = time.monotonic() + WAIT_S
        while len(seen) < 5 or len(set(seen[-5:])) > 1:
            assert time.monotonic() < deadline_s, f"blocks are written and written: {seen}"
            seen.append(self.transfers("write", "done"))


def _manner(rng: random.Random, **given: object) -> Manner:
    drawn = Manner(
        slo_class=rng.choice(("standard", "batch")), n=rng.choice((1, 1, 2, MAX_CHOICES)), streams=rng.random() < 0.5
    )
    return dataclasses.replace(drawn, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory, native_library: NativeLibrary) -> Path:
    from tests.tiny_model import make_tiny_llama  # imports transformers

    return make_tiny_llama(tmp_path_factory.mktemp("llama"), num_hidden_layers=4)


@pytest.fixture(scope="module")
def known(model_path: Path, cache_path: Path) -> dict[Question, Answer]:
    """By a server that has room for all and keeps no prefix."""
    arguments = (str(model_path), *MODEL_OPTIONS, "--kv-cache-memory", "64MiB", "--no-enable-prefix-caching")
    with HeadraceProcess(*arguments, cache_path=cache_path) as process, open_client(process.wait_ready()) as client:
        return ask_reference(client, num_dialogues=9, num_turns=3, num_documents=4, seed=6)


@pytest.fixture(scope="module")
def tiered(
    model_path: Path, cache_path: Path, known: dict[Question, Answer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiered]:
    disk_path = tmp_path_factory.mktemp("disk") / "kv"
    arguments = (str(model_path), *MODEL_OPTIONS, *TIERS, "--disk-path", str(disk_path))
    service = KVService(arguments, cache_path=cache_path)
    service.start()
    try:
        yield Tiered(service, disk_path, known)
    finally:
        service.close()


def test_chats_that_overflow_the_device_are_exact_and_counted(tiered: Tiered) -> None:
    """Usage, which clients see, and the metrics tell the same."""
    before = tiered.metrics()
    by_tier = Counter[str]()
    questions = list(tiered.known)
    for seed in range(2):
        by_tier += tiered.check(random.Random(seed).sample(questions, len(questions)), seed, n=1)
    after = tiered.metrics()
    assert by_tier["device"] > 0 and by_tier["host"] > 0 and by_tier["disk"] > 0
    hits = {tier: f'headrace_kv_tier_hit_tokens_total{{tier="{tier}"}}' for tier in ("device", "host", "disk")}
    total = "headrace_prefix_cache_hits_tokens_total"
    assert sum(after[name] - before[name] for name in hits.values()) == after[total] - before[total]
    preempted = sum(after[name] - before[name] for name in after if name.startswith("headrace_preemptions_total"))
    if not preempted:  # a request that lost its blocks looks its prefix up once more
        assert {tier: after[name] - before[name] for tier, name in hits.items()} == by_tier
    for tier in ("host", "disk"):
        used, limit = (after[f'headrace_kv_tier_blocks{part}{{tier="{tier}"}}'] for part in ("", "_limit"))
        assert 0 < used <= limit
    tiered.settle()
    assert tiered.metrics()['headrace_kv_tier_blocks{tier="disk"}'] == len(block_files(tiered.disk_path))


def test_choices_streams_and_classes_are_exact_under_preemption(tiered: Tiered) -> None:
    before = tiered.metrics()
    questions = [question for question in tiered.known if question.prompt] * 4
    tiered.check(questions, 3, n=MAX_CHOICES)
    tiered.check(list(tiered.known), 4)
    after = tiered.metrics()
    names = [name for name in after if name.startswith("headrace_preemptions_total")]
    assert sum(after[name] - before[name] for name in names) > 0


def test_clients_that_leave_get_the_beginning_and_hold_nothing(tiered: Tiered) -> None:
    questions = list(tiered.known)[:24]
    for seed in range(2):
        tiered.check(questions, seed, streams=True, leaves_after=1 + 5 * seed)
    deadline_s = time.monotonic() + WAIT_S
    names = ("headrace_requests_running", "vllm:num_requests_waiting", "headrace_kv_cache_usage_ratio")
    while busy := {name: v for name, v in tiered.metrics().items() if name.startswith(names) and v}:
        assert time.monotonic() < deadline_s, busy


def test_salts_share_nothing_and_the_same_salt_does(tiered: Tiered) -> None:
    question = next(question for question in tiered.known if question.prompt)
    with open_client(tiered.service.url) as client:
        cold = ask(client, question, Manner(cache_salt="of nobody else", cache_key="a key"))
        warm = ask(client, question, Manner(cache_salt="of nobody else", cache_key="a key"))
        other = ask(client, question, Manner(cache_salt="of another"))
    assert cold.num_cached == other.num_cached == 0
    assert warm.num_cached > 0
    for answer in (cold, warm, other):
        assert difference(answer, tiered.known[question], Manner()) is None


def _kill_engine(tiered: Tiered) -> None:
    tiered.service.kill_engine()


def _kill_server(tiered: Tiered) -> None:
    tiered.service.kill()
    tiered.service.start()


@pytest.mark.parametrize("kill", [_kill_engine, _kill_server])
def test_what_was_killed_finds_its_prefixes_on_disk(tiered: Tiered, kill: Callable[[Tiered], None]) -> None:
    questions = [question for question in tiered.known if question.messages][:8]
    tiered.check(questions, 5, n=1)
    tiered.settle()
    kill(tiered)
    assert any("were found there" in line and ", 0 were found" not in line for line in tiered.service.lines)
    assert tiered.check(questions[-1:], 6, n=1)["disk"] > 0
    tiered.check(list(tiered.known), 6)


def test_flipped_bytes_are_found_counted_and_computed_again(tiered: Tiered) -> None:
    questions = [question for question in tiered.known if question.messages]
    tiered.check(questions, 7, n=1)
    tiered.settle()
    before = tiered.transfers("read", "corrupt")
    assert strike(tiered.disk_path, flip_byte, 1.0, random.Random(8)) > 100
    tiered.check(list(tiered.known), 9)
    assert tiered.transfers("read", "corrupt") > before


def test_a_directory_that_goes_is_made_again(tiered: Tiered) -> None:
    before = tiered.transfers("read", "absent")
    tiered.check(list(tiered.known)[:20], 10)
    tiered.settle()
    remove_everything(tiered.disk_path)
    assert not block_files(tiered.disk_path)
    tiered.check(list(tiered.known), 11)
    assert tiered.transfers("read", "absent") > before
    tiered.settle()
    assert block_files(tiered.disk_path)


def test_a_disk_that_is_full_gives_way_and_the_server_serves(tiered: Tiered) -> None:
    """By a limit of the process on the size of files: EFBIG, which needs no rights and no small disk."""
    engine = tiered.service.engine()
    assert engine is not None
    limit_files(engine, 4096)
    before = tiered.transfers("write", "full")
    tiered.check(list(tiered.known), 12, cache_salt="new blocks")
    assert tiered.transfers("write", "full") > before
    assert tiered.metrics()[DISK_LIMIT] > 0
    limit_files(engine, None)
    tiered.check(list(tiered.known), 13)


def test_sigterm_ends_it_and_nothing_was_logged_that_should_not(tiered: Tiered) -> None:
    """Last: the shared server ends here."""
    tiered.service.stop()
    assert tiered.service.wrong_lines == []
