"""What the terminal shows once the server answers."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from engine.messages import Ready
from scheduler.slo import SLOClasses
from server.start_report import show_start

READY = Ready(
    max_model_len=64, model_max_len=64, vocab_size=10, eos_token_ids=(1,), block_size=16, num_blocks=100,
    dtype="float32", device="cpu", weights_bytes=2**20, kv_cache_bytes=2**20, threads=2, load_s=1.25,
)  # fmt: skip


def shown(ready: Ready) -> str:
    console = Console(file=io.StringIO(), width=200)
    show_start(console, "http://127.0.0.1:1", "tiny", ready, SLOClasses())
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
