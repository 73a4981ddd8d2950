"""KV tiers in /metrics: complete from the start, true to each message, and on through restarts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import KVTierStats, Ready, StepOutputs
from scheduler.kv_transfer import BlockOutcome, TransferKind
from scheduler.slo import SLOClasses
from server.metrics import Metrics
from tests.fake_async_engine import fake_stats
from tests.tier_records import kv_tiers

DOCS = Path(__file__).parents[3] / "docs"
READY = Ready(
    max_model_len=2048, model_max_len=2048, vocab_size=100, eos_token_ids=(0,), block_size=16, num_blocks=100,
    dtype="float32", device="cpu", weights_bytes=1, kv_cache_bytes=1, threads=1, load_s=1.0,
)  # fmt: skip
USED = kv_tiers(
    num_host_used=3,
    num_disk_used=5,
    hit_tokens={"device": 64, "host": 32, "disk": 16},
    num_evictions={"host": 2, "disk": 1},
    num_preemptions={"swap": 4, "free": 3, "recompute": 6},
    num_loads=7,
    num_load_tokens=48,
    num_recompute_choices=9,
    num_failed_loads=10,
    num_transfers={"load": {"done": 11, "corrupt": 12}, "write": {"full": 1}},
    block_bytes=4096,
    num_bytes={"load": 8192},
    busy_s={"load": 0.5},
    num_verified_blocks=13,
    disk_read_bytes_per_s=1e9,
    disk_write_bytes_per_s=2e9,
)


def step(step_id: int, tiers: KVTierStats | None, **changes: int) -> StepOutputs:
    return StepOutputs(stats=msgspec.structs.replace(fake_stats(step_id), kv_tiers=tiers, **changes))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(SLOClasses(), "tiny")


def samples(metrics: Metrics) -> dict[str, float]:
    """By name and labels as they are written: `name{label="value"}`."""
    lines = metrics.render().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_every_series_is_there_before_anything_moved(metrics: Metrics) -> None:
    shown = samples(metrics)
    for tier in ("host", "disk"):
        for name in ("tier_blocks", "tier_blocks_limit", "tier_on", "evictions_total"):
            assert shown[f'headrace_kv_{name}{{tier="{tier}"}}'] == 0
    for kind in TransferKind:
        assert shown[f'headrace_kv_transfer_bytes_total{{kind="{kind.value}"}}'] == 0
        for outcome in BlockOutcome:
            assert shown[f'headrace_kv_transfers_total{{kind="{kind.value}",outcome="{outcome.value}"}}'] == 0
    for tier in ("device", "host", "disk"):
        assert shown[f'headrace_kv_tier_hit_tokens_total{{tier="{tier}"}}'] == 0
    assert not [family for family in _families(metrics) if not family.documentation]


def test_one_message_is_shown_as_it_is(metrics: Metrics) -> None:
    metrics.on_step(step(1, USED, prompt_tokens_cached=112, num_preemptions=13))
    shown = samples(metrics)
    expected = {
        'tier_blocks{tier="host"}': 3, 'tier_blocks{tier="disk"}': 5,
        'tier_blocks_limit{tier="host"}': 8, 'tier_blocks_limit{tier="disk"}': 32,
        'tier_on{tier="host"}': 1, 'tier_on{tier="disk"}': 1, "disk_writable": 1,
        'evictions_total{tier="host"}': 2, 'evictions_total{tier="disk"}': 1,
        'tier_hit_tokens_total{tier="device"}': 64, 'tier_hit_tokens_total{tier="host"}': 32,
        'tier_hit_tokens_total{tier="disk"}': 16,
        'hit_choices_total{choice="load"}': 7, 'hit_choices_total{choice="recompute"}': 9,
        "load_tokens_total": 48, "failed_loads_total": 10, "verified_blocks_total": 13,
        'transfers_total{kind="load",outcome="done"}': 11, 'transfers_total{kind="load",outcome="corrupt"}': 12,
        'transfers_total{kind="write",outcome="full"}': 1, 'transfers_total{kind="read",outcome="done"}': 0,
        'transfer_bytes_total{kind="load"}': 8192, 'transfer_busy_seconds_total{kind="load"}': 0.5,
        'disk_bytes_per_second{operation="read"}': 1e9, 'disk_bytes_per_second{operation="write"}': 2e9,
    }  # fmt: skip
    assert {name: shown[f"headrace_kv_{name}"] for name in expected} == expected
    assert shown['headrace_host_memory_bytes{owner="kv"}'] == 8 * 4096


def test_sources_of_prompt_tokens_and_preemptions_add_up(metrics: Metrics) -> None:
    metrics.on_step(step(1, USED, prompt_tokens_cached=112, num_preemptions=13, prefix_cache_hits=112))
    shown = samples(metrics)
    hits = [shown[f'headrace_prompt_tokens_total{{source="{tier}_hit"}}'] for tier in ("device", "host", "disk")]
    restores = [shown[f'headrace_preemptions_total{{restore="{name}"}}'] for name in ("swap", "free", "recompute")]
    assert hits == [64, 32, 16] and sum(hits) == shown["headrace_prefix_cache_hits_tokens_total"]
    assert restores == [4, 3, 6] and sum(restores) == shown['vllm:num_preemptions_total{model_name="tiny"}']


def test_a_tier_that_is_off_or_full_is_shown(metrics: Metrics) -> None:
    metrics.on_step(step(1, USED))
    changes = {"is_host_on": False, "is_disk_writable": False}
    metrics.on_step(step(2, msgspec.structs.replace(USED, **changes)))
    shown = samples(metrics)
    assert [shown[f'headrace_kv_tier_on{{tier="{tier}"}}'] for tier in ("host", "disk")] == [0, 1]
    assert shown["headrace_kv_disk_writable"] == 0


def test_counters_go_on_through_a_restart_announced_or_not(metrics: Metrics) -> None:
    load, disk = 'headrace_kv_transfers_total{kind="load",outcome="done"}', 'headrace_kv_tier_blocks{tier="disk"}'
    host_hits = 'headrace_kv_tier_hit_tokens_total{tier="host"}'
    metrics.on_step(step(1, USED))
    metrics.on_step(step(2, msgspec.structs.replace(USED, num_transfers={"load": {"done": 20}})))
    assert samples(metrics)[load] == 20
    metrics.on_engine_died()
    fresh = kv_tiers(num_disk_used=5, num_transfers={"load": {"done": 30}})
    metrics.on_engine_ready(msgspec.structs.replace(READY, kv_tiers=fresh))
    assert samples(metrics)[load] == 50, "more than before: all of it is new all the same"
    assert samples(metrics)[disk] == 5, "found on the disk at the start"
    metrics.on_step(step(1, kv_tiers(num_transfers={"load": {"done": 4}}, hit_tokens={"host": 8})))
    assert samples(metrics)[load] == 54, "a total that fell began anew"
    assert samples(metrics)[host_hits] == 32 + 8


def test_an_engine_without_tiers_changes_nothing(metrics: Metrics) -> None:
    before = samples(metrics)
    metrics.on_step(step(1, None, prompt_tokens_cached=16))
    after = samples(metrics)
    changed = {name for name in after if after[name] != before.get(name) and name.startswith("headrace_kv_")}
    assert changed == {'headrace_kv_tier_hit_tokens_total{tier="device"}', 'headrace_kv_cache_blocks{state="total"}'}
    assert 'headrace_host_memory_bytes{owner="kv"}' not in after


def test_every_name_is_in_the_docs(metrics: Metrics) -> None:
    docs = "".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    names = {family.name for family in _families(metrics) if family.name.startswith("headrace_kv_")}
    before_tiers = {"headrace_kv_cache_usage_ratio", "headrace_kv_cache_blocks"}
    assert names > before_tiers
    assert not [name for name in names - before_tiers if f"`{name}" not in docs]


def _families(metrics: Metrics) -> list[Metric]:
    return list(text_string_to_metric_families(metrics.render().decode()))
