"""`headrace bench --trace` against servers of several makers: lengths, conversations, lines, Ctrl-C, exit codes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadgen.bench import EXIT_INTERRUPTED, EXIT_NOT_RUN, EXIT_VALID, main_bench
from loadgen.config import BenchConfig
from loadgen.traces.trace_request import TraceRequest, encode_request
from server.cli import app
from tests.certificates import make_certificate
from tests.fake_openai_server import Received, chat_events, serve, stream_reply
from tests.integration.conftest import LiveServer
from tests.server_dialects import CHAT, Dialect, llama_cpp, openai, sglang, vllm

ROWS = [
    TraceRequest(0.0, 200, 3, slo_class="interactive"),
    TraceRequest(0.01, 96, 2, prefix=(1, 2, 3), block=32),
    TraceRequest(0.02, 128, 2, prefix=(1, 2, 3, 4), block=32, slo_class="batch"),
    TraceRequest(0.03, 150, 4, session="s", slo_class="interactive"),
    TraceRequest(0.04, 260, 2, session="s", turn=1, after=3, think_s=0.01, slo_class="interactive"),
]


def _write(path: Path, rows: Sequence[TraceRequest]) -> str:
    path.write_text("".join(encode_request(row) + "\n" for row in rows))
    return str(path)


def _bench(url: str, directory: Path, rows: Sequence[TraceRequest], **options: Any) -> tuple[int, dict[str, Any]]:
    out = directory / "result.json"
    defaults: dict[str, Any] = {"max_send_lag": 1e12, "save_requests": True, "progress": False}
    config = BenchConfig(
        url, trace_path=_write(directory / "t.jsonl", rows), json_path=str(out), **{**defaults, **options}
    )
    code = main_bench(config)
    return code, json.loads(out.read_text()) if out.exists() else {}


def test_pieces_of_one_trace_are_different_traces(tmp_path: Path) -> None:
    """Their sidecars tell of the same source."""
    whole = tmp_path / "whole.csv"
    whole.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2023-11-16 18:17:{second:02}.0000000,{40 + second},2\n" for second in range(20))
    )
    dialect, runs = vllm(), []
    with serve(dialect.paths) as server:
        for rows in ("0:10", "10:20"):
            path, out = tmp_path / f"{rows[0]}.jsonl", tmp_path / f"{rows[0]}.json"
            assert (
                CliRunner().invoke(app, ["trace", "cut", str(whole), "--rows", rows, "--out", str(path)]).exit_code == 0
            )
            config = BenchConfig(
                server.url,
                trace_path=str(path),
                json_path=str(out),
                rate=200.0,
                max_send_lag=1e12,
                save_requests=True,
                progress=False,
            )
            assert main_bench(config) == EXIT_VALID
            told = json.loads(out.read_text())["trace"]["sha256"]
            assert told == hashlib.sha256(path.read_bytes()).hexdigest()
            runs.append(str(out))
    compared = CliRunner().invoke(app, ["compare", *runs])
    assert compared.exit_code == 2 and "trace sha256" in compared.stderr and "--unpaired" in compared.stderr


@pytest.mark.parametrize("dialect_of", [vllm, sglang, llama_cpp, openai])
def test_a_trace_is_replayed_with_its_lengths_on_every_server(
    dialect_of: Callable[[], Dialect], tmp_path: Path
) -> None:
    dialect = dialect_of()
    with serve(dialect.paths) as server:
        code, result = _bench(
            server.url, tmp_path, ROWS, classes=("interactive:ttft=600s", "batch:e2e=600s"), **dialect.options
        )
    assert code == EXIT_VALID
    assert result["errors"] == []
    assert result["overall"]["sent"] == result["overall"]["met"] == 5
    assert result["calibration"]["source"] == dialect.calibration
    assert result["trace"]["max_model_len"] == dialect.max_model_len
    assert {request["trace_id"] for request in result["requests"]} == {0, 1, 2, 3, 4}
    for request in result["requests"]:
        row = ROWS[request["trace_id"]]
        assert request["output_tokens"] == row.out_tokens
        assert request["prompt_tokens"] == pytest.approx(row.in_tokens, abs=4), "with the template"
        assert request["slo_class"] == (row.slo_class or request["slo_class"])
    turn, before = (next(r for r in result["requests"] if r["trace_id"] == i) for i in (4, 3))
    assert turn["intended_s"] == pytest.approx(before["finished_s"] + 0.01, abs=1e-5)
    bodies = [r.body for r in server.requests_to(CHAT) if r.body.get("stream")]
    (with_history,) = (body for body in bodies if len(body["messages"]) == 3)
    assert with_history["messages"][1] == {"role": "assistant", "content": "w0 w1 w2 w3 "}
    prompts = sorted((b["messages"][0]["content"] for b in bodies if len(b["messages"]) == 1), key=len)
    assert prompts[1].startswith(prompts[0][: len(prompts[0]) // 2]), "rows 1 and 2 share their first blocks"


def test_rows_too_long_for_the_server_are_refused_or_dropped_as_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*ROWS, TraceRequest(0.05, 5000, 1)]
    with serve(vllm().paths) as server:
        code, _ = _bench(server.url, tmp_path, rows)
        assert code == EXIT_NOT_RUN
        assert "longer than the 4096 tokens" in " ".join(capsys.readouterr().err.split())
        assert not server.requests_to(CHAT)
        code, result = _bench(server.url, tmp_path, rows, too_long="drop")
        assert code == EXIT_VALID
        assert (result["trace"]["num_rows"], result["trace"]["num_too_long"], result["overall"]["sent"]) == (6, 1, 5)
        code, result = _bench(server.url, tmp_path, rows, too_long="clip")
        assert (code, result["overall"]["sent"], result["overall"]["failed"]) == (EXIT_VALID, 6, 0)
        code, result = _bench(server.url, tmp_path, rows, max_model_len=6000)
        assert (code, result["overall"]["failed"]) == (EXIT_VALID, 1)
        assert result["errors"][0]["code"] == "BadRequestError"


def test_a_trace_that_cannot_be_read_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_bench(BenchConfig("http://127.0.0.1:9", trace_path=str(tmp_path / "none.jsonl"))) == EXIT_NOT_RUN
    assert "none.jsonl" in capsys.readouterr().err


def test_lines_are_on_disk_while_the_run_goes_on_and_ctrl_c_still_reports(tmp_path: Path) -> None:
    lines_path = tmp_path / "lines.jsonl"
    seen: list[list[dict[str, Any]]] = []

    async def answer_three(request: Received) -> AsyncGenerator[bytes, None]:
        if len(server.requests_to(CHAT)) > 3:
            seen.append([json.loads(line) for line in lines_path.read_text().splitlines()])
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        async for part in stream_reply(chat_events(2))(request):
            yield part

    paths = {**openai().paths, CHAT: answer_three}
    with serve(paths) as server:
        code, result = _bench(
            server.url,
            tmp_path,
            [TraceRequest(float(i), 8, 2) for i in range(50)],
            concurrency=1,
            calibrate=False,
            requests_path=str(lines_path),
        )
    assert code == EXIT_INTERRUPTED
    assert [line["index"] for line in seen[0]] == [0, 1, 2]
    lines = [json.loads(line) for line in lines_path.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["unjudged"] * 3 + ["cancelled"]
    assert result["overall"]["sent"] == 4
    for line, request in zip(lines, result["requests"], strict=True):
        assert line == {key: value for key, value in request.items() if key in line}


def test_a_class_may_be_named_by_a_header_of_its_own_or_a_tier(tmp_path: Path) -> None:
    with serve(openai().paths) as server:
        code, _ = _bench(
            server.url,
            tmp_path,
            [TraceRequest(0.0, 8, 1, slo_class=name) for name in ("a", "b")],
            classes=("a:header=x-priority:9", "b:service_tier=flex"),
            calibrate=False,
            **openai().options,
        )
    assert code == EXIT_VALID
    a, b = sorted(server.requests_to(CHAT), key=lambda request: "service_tier" in request.body)
    assert (a.headers["x-priority"], a.headers["x-slo-class"]) == ("9", "a")
    assert b.body["service_tier"] == "flex"
    assert "x-slo-class" not in b.headers


def test_clients_that_leave_close_their_connections(tmp_path: Path) -> None:
    num_left = 0

    async def endless(_: Received) -> AsyncGenerator[bytes, None]:
        nonlocal num_left
        try:
            async for part in stream_reply(chat_events(1)[:2], done=False)(_):
                yield part
            while True:
                yield b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
                await asyncio.sleep(0)
        finally:
            num_left += 1

    with serve({**openai().paths, CHAT: endless}) as server:
        rows = [TraceRequest(0.0, 8, 6)] * 4
        _, result = _bench(server.url, tmp_path, rows, cancel_share=1.0, calibrate=False)
    assert result["overall"]["outcomes"]["cancelled"] == 4
    assert {request["error_code"] for request in result["requests"]} == {"left"}
    assert num_left == 4


def test_a_server_behind_https_is_measured_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serve(vllm().paths, tls) as server:
        code, result = _bench(server.url, tmp_path, ROWS)
    assert (code, result["errors"], result["overall"]["sent"]) == (EXIT_VALID, [], 5)
    sent = server.requests_to(CHAT)
    assert {request.headers["host"] for request in sent} == {server.url.removeprefix("https://")}


def test_a_trace_of_conversations_is_replayed_against_the_real_server(live_server: LiveServer, tmp_path: Path) -> None:
    """Words become tokens of the tiny model's own tokenizer as its /tokenize counts them, and turns hit its cache."""
    rows = [
        TraceRequest(0.0, 120, 8, session="s", slo_class="interactive"),
        TraceRequest(0.0, 100, 8, slo_class="batch"),
        TraceRequest(0.1, 250, 8, session="s", turn=1, after=0, think_s=0.05, slo_class="interactive"),
        TraceRequest(0.1, 128, 4, prefix=(1, 2, 3, 4), block=32),
        TraceRequest(0.4, 128, 4, prefix=(1, 2, 3, 5), block=32),
    ]
    options = {"concurrency": 1, "classes": ("standard", "batch", "interactive"), "too_long": "clip"}
    code, result = _bench(live_server.url, tmp_path, rows, **options)
    assert code == EXIT_VALID
    assert result["errors"] == []
    assert result["overall"]["sent"] == 5
    assert result["calibration"]["source"] == "tokenize"
    by_row = {request["trace_id"]: request for request in result["requests"]}
    for row_id, row in enumerate(rows):
        assert by_row[row_id]["output_tokens"] == row.out_tokens
        assert by_row[row_id]["prompt_tokens"] == pytest.approx(row.in_tokens, rel=0.25), row_id
    assert by_row[2]["cached_prompt_tokens"] >= 64, "the turn begins with what was said before"
    assert by_row[4]["cached_prompt_tokens"] >= 64, "three of four blocks are shared"
