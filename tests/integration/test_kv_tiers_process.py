"""A server that is killed finds the prefixes of its prompts on disk again, and says what it said when they were new."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.headrace_process import READY_WITHIN_S, HeadraceProcess, run_headrace

NUM_TOKENS = 160
"""10 blocks of 8 KiB."""
PROMPTS = [[5 + (number * 37 + place * place) % 200 for place in range(NUM_TOKENS)] for number in range(3)]
ARGUMENTS = (
    "--served-model-name", "tiny", "--dtype", "float32", "--kv-cache-memory", "128KiB", "--host-memory", "4MiB",
    "--disk-size", "8MiB", "--no-predict-steps", "--kv-checksum", "always",
)  # fmt: skip


def ask(url: str, prompt: list[int]) -> tuple[str, dict[str, int]]:
    """Text of a greedy completion, and where its prefix came from."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer: dict[str, Any] = httpx.post(f"{url}/v1/completions", json=body, timeout=60.0).raise_for_status().json()
    return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens_by_tier"]


def num_on_disk(url: str) -> float:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith('headrace_kv_tier_blocks{tier="disk"}'))


@pytest.mark.timeout(180)
def test_prefixes_outlive_the_server(tiny_model_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    arguments = (str(tiny_model_path), *ARGUMENTS, "--disk-path", str(tmp_path / "disk"), "--event-log", str(log))
    with HeadraceProcess(*arguments) as process:
        url = process.wait_ready()
        cold = [ask(url, prompt) for prompt in PROMPTS]
        assert all(sum(tiers.values()) == 0 for _, tiers in cold)
        warm = [ask(url, prompt) for prompt in PROMPTS]
        assert [text for text, _ in warm] == [text for text, _ in cold]
        assert all(tiers["host"] > 0 for _, tiers in warm), "16 blocks of the device hold one prompt"
        end_s = time.monotonic() + READY_WITHIN_S
        while num_on_disk(url) < 30:
            assert time.monotonic() < end_s, "blocks are not written while nothing else is to do"
        process.signal(signal.SIGKILL)
        process.wait_exit()
    with HeadraceProcess(*arguments) as process:
        url = process.wait_ready()
        again = [ask(url, prompt) for prompt in PROMPTS]
        assert [text for text, _ in again] == [text for text, _ in cold]
        assert [tiers["disk"] for _, tiers in again] == [NUM_TOKENS - 16] * 3
        process.signal(signal.SIGTERM)
        assert process.wait_exit() == 0
        assert any("KV on disk: room for" in line and "were found there" in line for line in process.lines)
    replayed = run_headrace("replay", str(log))
    assert replayed.returncode == 0 and "engine processes: 2" in replayed.stdout, replayed.stdout + replayed.stderr
