"""Half an hour of a real server with tiny KV tiers, damaged in every way: no wrong answer, no hang, no growth."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.native_library import NativeLibrary
from tests.headrace_process import HeadraceProcess
from tests.kv_dialogues import CLASSES, MODEL, Answer, Question, ask_reference, open_client
from tests.kv_faults import FILE_FAULTS, small_disk
from tests.kv_service import KVService
from tests.kv_soak import KVSoak
from tests.kv_watch import growth

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

logger = logging.getLogger(__name__)

SOAK_S = float(os.environ.get("HEADRACE_SOAK_S", "1800"))
LONG_S = 300.0
"""A run of that length has met everything."""
MODEL_OPTIONS = ("--served-model-name", MODEL, "--dtype", "float32", "--threads", "1", "--kernels", "native")
DISK_BYTES = 6 * 2**20
"""300 blocks of 20 KiB; prompts and answers have some 1500 different ones."""
MOUNT_BYTES = 8 * 2**20
TIERS = (
    "--kv-cache-memory", "1MiB", "--host-memory", "768KiB", "--disk-size", "6MiB", "--kv-checksum", "always",
)  # fmt: skip
WARM_S = 20.0
"""After that an engine has all that it will have."""
MAX_GROWTH_BYTES = 32 * 2**20
"""Over some 60,000 requests; without tiers an engine grows by 0.4 KB a request as well."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory, native_library: NativeLibrary) -> Path:
    from tests.tiny_model import make_tiny_llama  # imports transformers

    return make_tiny_llama(tmp_path_factory.mktemp("llama"), num_hidden_layers=4)


@pytest.fixture(scope="module")
def known(model_path: Path, cache_path: Path) -> dict[Question, Answer]:
    """By a server that keeps no prefix."""
    arguments = (str(model_path), *MODEL_OPTIONS, "--kv-cache-memory", "64MiB", "--no-enable-prefix-caching")
    with HeadraceProcess(*arguments, cache_path=cache_path) as process, open_client(process.wait_ready()) as client:
        return ask_reference(client, num_dialogues=16, num_turns=4, num_documents=5, seed=6)


@pytest.fixture
def soak(model_path: Path, cache_path: Path, known: dict[Question, Answer], tmp_path: Path) -> Iterator[KVSoak]:
    disk = tmp_path / "small"
    with small_disk(disk, MOUNT_BYTES) as is_mounted:
        disk_path = disk / "kv"
        service = KVService(
            (str(model_path), *MODEL_OPTIONS, *TIERS, "--disk-path", str(disk_path)), cache_path=cache_path
        )
        service.start()
        try:
            yield KVSoak(service, known, disk_path, DISK_BYTES, disk if is_mounted else None, seed=7)
        finally:
            service.close()


def test_nothing_wrong_is_served_and_nothing_grows(soak: KVSoak) -> None:
    soak.run(SOAK_S)
    service, tally, watch = soak._service, soak.tally, soak.watch
    tally.slowest_stop_s = max(tally.slowest_stop_s, service.stop())
    totals = watch.totals()
    logger.info("%s; %s", tally, watch.num_answers)
    logger.info("%s", {name: value for name, value in totals.items() if value and "headrace_kv" in name})
    assert not tally.problems and not watch.problems and not service.wrong_lines
    assert set(tally.outcomes) <= {"right", "refused", "outage"}
    hits = sum(value for name, value in totals.items() if name.startswith("headrace_kv_tier_hit_tokens_total"))
    assert hits == totals["headrace_prefix_cache_hits_tokens_total"]
    if SOAK_S >= LONG_S:
        _assert_all_was_met(soak)
        _assert_nothing_grew(soak)


def _assert_nothing_grew(soak: KVSoak) -> None:
    """The engine that lived longest and its server, over that life: what is a leak in half an hour is one here."""
    before, after = growth(soak.watch.samples, WARM_S)
    logger.info("%s, then %s; at most %d bytes on disk", before, after, soak.watch.most_disk_bytes)
    assert after.engine_bytes - before.engine_bytes < MAX_GROWTH_BYTES
    assert after.server_bytes - before.server_bytes < MAX_GROWTH_BYTES
    assert after.engine_threads <= before.engine_threads and after.server_threads <= before.server_threads
    assert after.engine_fds <= before.engine_fds + 2 and after.server_fds <= before.server_fds + 16


def _assert_all_was_met(soak: KVSoak) -> None:
    """A soak in which something never happens proves nothing of it."""
    tally, totals = soak.tally, soak.watch.totals()
    for word in (*CLASSES, "n=1", "n=2", "n=3", "whole", "stream", "left", "salt=None", "salt=ant", "salt=bee"):
        assert tally.answered_by[word] > 0, word
    assert all(tally.struck_files[fault.__name__] > 0 for fault in FILE_FAULTS), tally.struck_files
    for tier in ("device", "host", "disk"):
        assert totals[f'headrace_kv_tier_hit_tokens_total{{tier="{tier}"}}'] > 0, tier
    met = {"read": ("done", "corrupt", "absent"), "write": ("done", "full", "failed"), "load": ("done",)}
    for kind, outcomes in met.items():
        for outcome in outcomes:
            assert totals[f'headrace_kv_transfers_total{{kind="{kind}",outcome="{outcome}"}}'] > 0, (kind, outcome)
    assert totals['headrace_preemptions_total{restore="free"}'] + totals['headrace_preemptions_total{restore="swap"}']
