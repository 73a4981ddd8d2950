"""Reports of real runs: against a real server, whose own counts must agree, and against a scripted one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from loadgen.bench import EXIT_VALID, main_bench
from loadgen.config import BenchConfig
from tests.fake_openai_server import Received, chat_events, json_reply, serve, stream_reply
from tests.html_page import Page
from tests.integration.conftest import LiveServer

CLASSES = ("interactive:0.5,prompt=8-24,output=2-12", "batch:0.3,output=16", "standard:0.2,turns=2,output=4")
ANY_LAG = 1e12


def _run(url: str, directory: Path, **options: Any) -> dict[str, Any]:
    path = directory / "result.json"
    config = BenchConfig(url, json_path=str(path), progress=False, max_send_lag=ANY_LAG, **options)
    assert main_bench(config) == EXIT_VALID
    body: dict[str, Any] = json.loads(path.read_text())
    return body


def test_the_real_server_counts_what_the_client_counts(live_server: LiveServer, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    body = _run(
        live_server.url, tmp_path, rate=40.0, requests=60, classes=CLASSES, cancel_share=0.15, html_path=str(report)
    )
    view = body["server_view"]
    assert (view["server"], view["problem"]) == ("Headrace", None)
    assert {c["name"]: c["server_offered"] for c in view["classes"]} == {
        name: summary["sent"] for name, summary in body["classes"].items()
    }
    for each in view["classes"]:
        assert each["client_sent"] == each["server_offered"] == sum(each["server_outcomes"].values())
        assert each["open_after"] == each["open_before"] == 0
        for outcome in ("refused", "expired", "failed"):
            assert each["client_outcomes"][outcome] == each["server_outcomes"][outcome]
        assert each["client_ttft_s"] > each["server_ttft_s"] > 0.0
        differs = {k: v for k, v in each["client_outcomes"].items() if v} != {
            k: v for k, v in each["server_outcomes"].items() if v
        }
        assert bool(each["notes"]) == differs, "a gap without a reason, or a reason without a gap"
    tokens = {total["name"]: (total["client"], total["server"]) for total in view["totals"]}
    assert tokens["output tokens"][0] <= tokens["output tokens"][1]
    num_turns = body["conversations"]["turns_sent"] + body["unsent_turns"]
    assert 0 <= body["conversations"]["begun"] * 2 - num_turns <= 1, "the last one may be cut by the number of requests"
    assert body["conversations"]["turns_sent"] == body["classes"]["standard"]["sent"] > 0
    cells = Page(report.read_text(encoding="utf-8")).with_attribute("data-json")
    sent = next(cell.text for cell in cells if json.loads(cell.attributes["data-json"]) == ["overall", "sent"])
    assert sent == "60"


def _scripted(slo_class: str = "a") -> dict[str, Any]:
    """A server that counts its requests as another of the same name does beside it."""
    registry = CollectorRegistry()
    offered = Counter("headrace_requests_offered", "", ("slo_class",), registry=registry)
    ended = Counter("headrace_requests_slo", "", ("slo_class", "outcome"), registry=registry)
    offered.labels(slo_class)
    answer = stream_reply(chat_events(3))

    async def chat(request: Received) -> AsyncGenerator[bytes, None]:
        offered.labels(slo_class).inc(2)  # and one of another client's
        ended.labels(slo_class, "met").inc(2)
        async for part in answer(request):
            yield part

    async def metrics(_: Received) -> AsyncGenerator[bytes, None]:
        raw = generate_latest(registry)
        yield f"HTTP/1.1 200 X\r\ncontent-length: {len(raw)}\r\nconnection: close\r\n\r\n".encode() + raw

    models = json_reply(200, {"data": [{"id": "tiny"}]})
    return {"/v1/models": models, "/v1/chat/completions": chat, "/metrics": metrics}


def test_another_client_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve(_scripted()) as server:
        body = _run(server.url, tmp_path, rate=500.0, requests=5, classes=("a:1,ttft=60s",))
        assert len(server.requests_to("/metrics")) == 2
    (each,) = body["server_view"]["classes"]
    assert (each["client_sent"], each["server_offered"]) == (5, 10)
    assert "another client was at work" in " ".join(capsys.readouterr().out.split())
    assert body["conditions"]["command"].startswith(f"headrace bench {server.url} --rate 500 --requests 5 --class a:1,")


def test_metrics_are_not_read_where_that_is_not_wanted(tmp_path: Path) -> None:
    with serve(_scripted()) as server:
        body = _run(server.url, tmp_path, rate=500.0, requests=2, scrape=False)
        assert server.requests_to("/metrics") == []
    assert body["server_view"] is None


def test_a_server_without_metrics_is_loaded_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = _scripted()
    del paths["/metrics"]
    with serve(paths) as server:
        body = _run(server.url, tmp_path, rate=500.0, requests=2)
    assert body["overall"]["sent"] == 2 and "HTTP 404" in body["server_view"]["problem"]
    assert "no counts of the server's: /metrics: HTTP 404" in capsys.readouterr().out


def test_the_form_of_vllm_is_written_on_demand(tmp_path: Path) -> None:
    with serve(_scripted()) as server:
        body = _run(server.url, tmp_path, rate=500.0, requests=4, json_format="vllm", save_requests=True)
    assert (body["completed"], body["total_output_tokens"], body["backend"]) == (4, 12, "openai-chat")
    assert len(body["ttfts"]) == len(body["itls"]) == 4 and "headrace_bench" not in body
