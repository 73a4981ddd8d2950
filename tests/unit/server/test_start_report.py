"""What the terminal shows once the server answers."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from engine.messages import AloneStats, ClassFloorStats, LinkDirectionStats, OffloadStats, Ready
from scheduler.config import PolicyName
from scheduler.slo import SLOClasses
from server.start_report import show_start
from tests.tier_records import kv_tiers

READY = Ready(
    max_model_len=64, model_max_len=64, vocab_size=10, eos_token_ids=(1,), block_size=16, num_blocks=100,
    dtype="float32", device="cpu", weights_bytes=2**20, kv_cache_bytes=2**20, threads=2, load_s=1.25,
)  # fmt: skip


def shown(ready: Ready, policy: PolicyName = "deadline") -> str:
    console = Console(file=io.StringIO(), width=200)
    show_start(console, "http://127.0.0.1:1", "tiny", ready, SLOClasses(), policy)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_threads_that_somebody_chose_need_no_reason() -> None:
    assert "compute   2 threads; ready after 1.2 s" in shown(READY)


def test_threads_that_were_measured_show_the_measurement() -> None:
    text = shown(msgspec.structs.replace(READY, step_s_by_threads={2: 0.00436, 1: 0.00714}))
    assert "2 threads (a step of the probe: 7.1 ms with 1, 4.4 ms with 2); ready" in text


def test_weights_are_shown_by_format_most_first() -> None:
    sizes = {"bfloat16": 2**20, "Q4_1": 7 * 2**20}
    text = shown(msgspec.structs.replace(READY, weights_bytes=2**23, weights_bytes_by_format=sizes))
    assert "weights   8 MiB: Q4_1 7 MiB, bfloat16 1 MiB\n" in text


def test_weights_kept_in_float32_show_how_to_halve_them() -> None:
    sizes = {"bfloat16": 2**20, "float32": 4 * 2**20}
    text = shown(msgspec.structs.replace(READY, dtype="bfloat16", weights_bytes_by_format=sizes))
    assert "float32 4 MiB, bfloat16 1 MiB; --dtype bfloat16 takes half as much" in text


def offload_stats(open_name: str, closed_name: str, late_name: str) -> OffloadStats:
    link = LinkDirectionStats(
        p50_bytes_per_s=2e9, p5_bytes_per_s=1e9, is_derated=False, num_drops=0, num_bytes={}, busy_s={},
        num_late_slices={}, num_failed={},
    )  # fmt: skip
    classes = tuple(
        ClassFloorStats(
            name=name, is_open=name != closed_name, is_best_effort=name == late_name, floor_ttft_s=1.0,
            floor_tpot_s=0.1, max_streamed_layers=None,
        )
        for name in (open_name, closed_name, late_name)
    )  # fmt: skip
    return OffloadStats(
        num_layers=30, num_streamed_layers=21, num_slots=2, num_steps=0, num_weight_bytes=0, num_loads=0, hidden_s=0.0,
        exposed_s=0.0, compute_s=0.0, quiet_compute_s=0.0,
        num_raised=0, num_lowered=0, num_replans=0, h2d=link, d2h=link, ledger={}, host_bytes=0,
        classes=classes,
    )  # fmt: skip


def test_streamed_weights_show_how_many_layers_and_which_class_is_not_in_time() -> None:
    text = shown(msgspec.structs.replace(READY, offload=offload_stats("batch", "realtime", "standard"), threads=1))
    assert "streaming 21 of 30 layers from host memory; what to do" in text and "docs/offload.md" in text
    assert "KV cache  up to 1 MiB" in text and "compute   1 thread; " in text
    assert " realtime (closed) " in text and " standard (default, best effort) " in text and " batch " in text


def test_without_streaming_nothing_is_said_of_it() -> None:
    text = shown(READY)
    assert "streaming" not in text and "closed" not in text and "up to" not in text


@pytest.mark.parametrize(
    ("margin", "policy", "line"),
    [
        (0.05, "edf", "policy edf, admission promise\n"),
        (None, "fcfs", "policy fcfs, admission caps: fcfs makes no promises\n"),
        (None, "deadline", "policy deadline, admission caps: no promises are made\n"),
    ],
)
def test_policy_and_admission_in_force_are_named(margin: float | None, policy: PolicyName, line: str) -> None:
    assert f"scheduler {line}" in shown(msgspec.structs.replace(READY, promise_margin=margin), policy)


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "end"),
    [
        (0.5, 0.03, "after ~500 ms, then ~30 ms a token\n"),
        (0.501, 0.03, "after ~501 ms, then ~30 ms a token: too slow for realtime\n"),
        (0.1, 0.0512, "after ~100 ms, then ~51.2 ms a token: too slow for realtime, interactive\n"),
    ],
)
def test_a_class_that_is_late_even_alone_is_named(ttft_s: float, tpot_s: float, end: str) -> None:
    alone = AloneStats(prompt_tokens=1000, ttft_s=ttft_s, tpot_s=tpot_s)
    text = shown(msgspec.structs.replace(READY, alone=alone))
    assert f"alone     first token of a 1,000-token prompt {end}" in text
    assert "alone" not in shown(READY)


def test_tiers_of_kv_blocks_show_their_sizes_and_what_the_disk_brought() -> None:
    tiers = kv_tiers(num_host_slots=256, num_disk_blocks=4096, num_disk_used=1200, block_bytes=2**18)
    text = shown(msgspec.structs.replace(READY, kv_tiers=tiers))
    host, disk = "host 64 MiB: 256 blocks, 4,096 tokens", "disk 1,024 MiB: 4,096 blocks, 65,536 tokens"
    assert f"KV tiers  {host}; {disk}, 1,200 blocks found there\n" in text
    text = shown(msgspec.structs.replace(READY, kv_tiers=msgspec.structs.replace(tiers, num_disk_blocks=0)))
    assert f"KV tiers  {host}\n" in text
    assert "KV tiers" not in shown(READY)
