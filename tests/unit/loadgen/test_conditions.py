"""The conditions of a run: the command in them runs the same test again."""

from __future__ import annotations

import dataclasses
import datetime
import shlex

import pytest
from typer.testing import CliRunner

from loadgen.conditions import gather_conditions
from loadgen.config import BenchConfig
from server.cli import app

CONFIGS = (
    BenchConfig("http://127.0.0.1:1"),
    BenchConfig("h:1/v1", rate=0.1, duration_s=1.5, classes=("a:1,ttft=300ms", "b c:2"), slo=("a:tpot_ms=5",), seed=7),
    BenchConfig("h", concurrency=3, scrape=False, progress=False, keep_alive=True, json_path="a b.json", html_path="x"),
    BenchConfig("h", trace_path="t.jsonl", too_long="drop", warm_up_s=2.0, cancel_share=0.25, json_format="vllm"),
)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_command_makes_the_same_config(config: BenchConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BenchConfig] = []
    monkeypatch.setattr("loadgen.bench.main_bench", lambda config: made.append(config) or 0)
    words = shlex.split(gather_conditions(dataclasses.replace(config, api_key="secret")).command)
    assert words[:2] == ["headrace", "bench"] and "secret" not in words
    result = CliRunner().invoke(app, words[1:], env={"HEADRACE_API_KEY": ""})
    assert result.exit_code == 0, result.output
    assert [dataclasses.replace(each, api_key=None) for each in made] == [config]


def test_the_rest_is_of_this_machine_and_moment() -> None:
    conditions = gather_conditions(BenchConfig("h"))
    started = datetime.datetime.fromisoformat(conditions.started_at)
    assert abs((datetime.datetime.now(datetime.UTC) - started).total_seconds()) < 60.0
    assert conditions.num_cores >= 1 and all(dataclasses.astuple(conditions))
