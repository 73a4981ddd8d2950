"""A server without a memory cap predicts its steps: by a brief record that its first start measures."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.headrace_process import HeadraceProcess

ARGUMENTS = ("--dtype", "float32", "--kv-cache-memory", "4MiB", "--served-model-name", "tiny")
NUM_TOKENS = 8


def _num_predicted(server: HeadraceProcess) -> float:
    """Steps that were predicted, once a request was answered."""
    url = server.wait_ready()
    body = {"model": "tiny", "prompt": "one two", "max_tokens": NUM_TOKENS, "ignore_eos": True}
    assert httpx.post(f"{url}/v1/completions", json=body, timeout=30.0).status_code == 200
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    (count,) = [line for line in lines if line.startswith("headrace_predicted_step_seconds_count")]
    return float(count.rpartition(" ")[2])


def test_steps_are_predicted_and_only_the_first_start_measures(tiny_model_path: Path, fresh_cache_path: Path) -> None:
    with HeadraceProcess(str(tiny_model_path), *ARGUMENTS, cache_path=fresh_cache_path) as server:
        assert _num_predicted(server) >= NUM_TOKENS
        assert any("measuring a brief one" in line for line in server.lines)
    if not list((fresh_cache_path / "records").glob("*.json")):  # beside other tests it is not kept
        assert any("other processes held the processors" in line for line in server.lines)
        return
    (path,) = (fresh_cache_path / "records").iterdir()
    assert path.name.endswith(".brief.json")
    written = path.read_bytes()
    with HeadraceProcess(str(tiny_model_path), *ARGUMENTS, cache_path=fresh_cache_path) as server:
        assert _num_predicted(server) >= NUM_TOKENS
        assert any(f"steps are predicted by the performance record {path}" in line for line in server.lines)
    assert path.read_bytes() == written
