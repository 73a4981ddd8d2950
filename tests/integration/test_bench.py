"""`headrace bench` against a scripted server: what it sends, how it counts answers, its exit codes and its JSON.

No expectation depends on how fast anything is: targets are either far away or below any possible time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from loadgen.bench import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_NOT_RUN, EXIT_VALID, main_bench
from loadgen.config import BenchConfig
from tests.fake_openai_server import Received, Reply, chat_events, json_reply, serve, stream_reply

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODELS = json_reply(200, {"object": "list", "data": [{"id": "tiny"}]})
FAR_MS = 600_000
SLO = json_reply(
    200,
    {
        "default_class": "batch",
        "classes": [
            {
                "name": name,
                "service_tiers": [tier],
                "targets": {
                    "ttft_base_ms": FAR_MS,
                    "ttft_per_1k_tokens_ms": 0,
                    "tpot_ms": FAR_MS,
                    "max_stall_ms": None,
                },
            }
            for name, tier in (("interactive", "fast"), ("batch", "flex"))
        ],
    },
)


def _paths(chat: Reply) -> dict[str, Reply]:
    return {"/v1/models": MODELS, "/v1/slo": SLO, CHAT: chat}


def _bench(url: str, path: Path, **options: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a quick run; send lag is not what these tests are about."""
    defaults: dict[str, Any] = {"rate": 500.0, "requests": 4, "max_send_lag": 1e12, "save_requests": True}
    code = main_bench(BenchConfig(url, json_path=str(path), progress=False, **{**defaults, **options}))
    return code, json.loads(path.read_text())


def test_a_run_of_two_classes_counts_every_request(tmp_path: Path) -> None:
    with serve(_paths(stream_reply(chat_events(3)))) as server:
        code, result = _bench(
            server.url,
            tmp_path / "result.json",
            requests=20,
            classes=("interactive:0.5,output=3", "batch:0.5,prompt=20,output=5"),
        )
    assert code == EXIT_VALID
    assert (result["valid"], result["model"], result["interrupted"]) == (True, "tiny", False)
    assert set(result["classes"]) == {"interactive", "batch"}
    assert result["overall"]["sent"] == result["overall"]["met"] == 20
    assert sum(summary["sent"] for summary in result["classes"].values()) == 20
    assert result["overall"]["offered_attainment"] == 1.0
    assert result["overall"]["prompt_tokens"] == 20 * 40
    assert result["overall"]["cached_prompt_tokens"] == 20 * 8
    assert result["overall"]["output_tokens"] == 20 * 3

    sent = server.requests_to(CHAT)
    assert len(sent) == 20
    for request in sent:
        assert request.headers["x-slo-class"] in ("interactive", "batch")
        assert request.headers["connection"] == "close"
        assert "authorization" not in request.headers
        body = request.body
        assert (body["model"], body["stream"], body["ignore_eos"]) == ("tiny", True, True)
        assert body["max_tokens"] == (3 if request.headers["x-slo-class"] == "interactive" else 5)
        assert body["stream_options"] == {"include_usage": True}
    assert len({request.body["messages"][0]["content"] for request in sent}) == 20


def test_every_timestamp_is_kept_in_order_from_the_intended_time_on(tmp_path: Path) -> None:
    with serve(_paths(stream_reply(chat_events(3)))) as server:
        _, result = _bench(server.url, tmp_path / "result.json")
    assert [request["index"] for request in result["requests"]] == [0, 1, 2, 3]
    for request in result["requests"]:
        times = [request["intended_s"], request["sent_s"], request["headers_s"]]
        times += [time_s for time_s, _ in request["chunks"]] + [request["finished_s"]]
        assert times == sorted(times)
        assert [n for _, n in request["chunks"]] == [1, 1, 1]


def test_targets_below_any_possible_time_are_missed_in_the_documented_order(tmp_path: Path) -> None:
    with serve(_paths(stream_reply(chat_events(3)))) as server:
        overrides = {
            "late_ttft": "batch:ttft_ms=1e-6,tpot_ms=1e-6,e2e_ms=1e-6",
            "late_e2e": "batch:e2e_ms=1e-6,tpot_ms=1e-6",
        }
        for outcome, slo in overrides.items():
            code, result = _bench(server.url, tmp_path / "result.json", classes=("batch",), slo=(slo,))
            assert code == EXIT_VALID
            assert result["classes"]["batch"]["outcomes"][outcome] == 4
            assert result["overall"]["late"] == 4
            assert result["overall"]["offered_attainment"] == result["overall"]["admitted_attainment"] == 0.0


def test_what_the_response_promises_is_what_it_is_judged_by(tmp_path: Path) -> None:
    told = "x-slo-class: batch\r\nx-slo-granted: batch\r\nx-slo-ttft-target-ms: 0.000001\r\n"
    degraded = told.replace("granted: batch", "granted: other")
    with serve(_paths(stream_reply(chat_events(3), told))) as server:
        _, result = _bench(server.url, tmp_path / "result.json", classes=("batch",))
        assert result["overall"]["outcomes"]["late_ttft"] == 4
        server.paths[CHAT] = stream_reply(chat_events(3), degraded)
        _, result = _bench(server.url, tmp_path / "result.json", classes=("batch",))
        assert result["overall"]["met"] == result["overall"]["degraded"] == 4


def test_answers_that_are_no_answer_are_told_apart(tmp_path: Path) -> None:
    broken = chat_events(2)[:2]
    in_stream_error = [*broken, {"error": {"message": "the engine died", "code": "engine_died"}}]
    replies = [
        json_reply(429, {"error": {"message": "the class has no room", "code": "class_queue_full"}}),
        json_reply(503, {"error": {"message": "no room", "code": "instance_full"}}),
        json_reply(503, {"error": {"message": "waited too long", "code": "expired"}}),
        json_reply(400, {"error": {"message": "bad request"}}),
        json_reply(500, {"error": {"message": "oops"}}),
        stream_reply(broken, done=False),
        stream_reply(in_stream_error),
        json_reply(200, {"choices": []}),
        _hang_up,
        stream_reply(chat_events(2)),
    ]
    queue = iter(replies)

    async def next_reply(request: Received) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(next(queue)(request)) as parts:
            async for part in parts:
                yield part

    with serve(_paths(next_reply)) as server:
        code, result = _bench(server.url, tmp_path / "result.json", rate=None, concurrency=1, requests=len(replies))
    assert code == EXIT_VALID
    overall = result["overall"]
    assert (overall["sent"], overall["met"], overall["refused"], overall["failed"]) == (10, 1, 2, 6)
    assert overall["outcomes"]["expired"] == 1
    assert overall["offered_attainment"] == 0.1
    assert overall["admitted_attainment"] == 1.0
    errors = [request["error"] or "" for request in result["requests"]]
    for index, text in enumerate(
        ("HTTP 429: the class has no room", "HTTP 503: no room", "HTTP 503: waited", "HTTP 400: bad request",
         "HTTP 500: oops", "broke off", "the engine died", "not an event stream", "")
    ):  # fmt: skip
        assert text in errors[index]
    codes = {(error["status"], error["code"]): error["count"] for error in result["errors"]}
    assert codes == {
        (429, "class_queue_full"): 1, (503, "instance_full"): 1, (503, "expired"): 1, (400, None): 1, (500, None): 1,
        (200, "broken_off"): 1, (200, "engine_died"): 1, (200, "bad_stream"): 1, (None, "RemoteProtocolError"): 1,
    }  # fmt: skip
    assert len(server.requests_to(CHAT)) == 10, "nothing is retried"


async def _hang_up(_: Received) -> AsyncGenerator[bytes, None]:
    """Close the connection without a byte."""
    return
    yield b""


async def _never_end(_: Received) -> AsyncGenerator[bytes, None]:
    await asyncio.Event().wait()
    yield b""


def test_a_request_that_never_ends_times_out(tmp_path: Path) -> None:
    with serve(_paths(_never_end)) as server:
        code, result = _bench(server.url, tmp_path / "result.json", requests=2, timeout_s=0.2)
    assert code == EXIT_VALID
    assert result["overall"]["outcomes"]["timed_out"] == 2
    assert result["overall"]["offered_attainment"] == 0.0


@pytest.mark.parametrize("signals", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGTERM, signal.SIGTERM)])
def test_a_signal_cuts_off_what_is_open_and_still_reports(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    async def interrupt_then_hang(_: Received) -> AsyncGenerator[bytes, None]:
        for number in signals:
            os.kill(os.getpid(), number)
        await asyncio.Event().wait()
        yield b""

    with serve(_paths(interrupt_then_hang)) as server:
        code, result = _bench(
            *(server.url, tmp_path / "result.json"),
            rate=None,
            concurrency=1,
            requests=50,
            html_path=str(tmp_path / "result.html"),
        )
    assert code == EXIT_INTERRUPTED
    assert (tmp_path / "result.html").stat().st_size > 0
    assert result["interrupted"] is True
    assert result["overall"]["sent"] == result["overall"]["outcomes"]["cancelled"] == 1
    assert result["overall"]["offered_attainment"] is None


def test_completions_with_service_tier_and_key(tmp_path: Path) -> None:
    events = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b", "finish_reason": "stop"}]}]
    paths = {"/v1/models": MODELS, "/v1/slo": SLO, COMPLETIONS: stream_reply(events, done=False)}
    with serve(paths) as server:
        code, result = _bench(
            server.url + "/v1/",
            tmp_path / "result.json",
            api="completions",
            classes=("interactive",),
            class_in="service_tier",
            api_key="secret",
            ignore_eos=False,
            requests=1,
        )
    assert code == EXIT_VALID
    assert result["overall"]["met"] == 1
    assert "secret" not in (tmp_path / "result.json").read_text()
    (request,) = server.requests_to(COMPLETIONS)
    assert request.headers["authorization"] == "Bearer secret"
    assert "x-slo-class" not in request.headers
    assert request.body["service_tier"] == "fast"
    assert "ignore_eos" not in request.body
    assert isinstance(request.body["prompt"], str)


def test_a_server_without_classes_is_measured_but_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve({"/v1/models": MODELS, CHAT: stream_reply(chat_events(3))}) as server:
        code, result = _bench(server.url, tmp_path / "result.json")
        assert code == EXIT_VALID
        assert result["overall"]["outcomes"]["unjudged"] == 4
        assert result["overall"]["offered_attainment"] is None
        assert "--slo" in capsys.readouterr().out
        assert all("x-slo-class" not in request.headers for request in server.requests_to(CHAT))
        _, result = _bench(server.url, tmp_path / "result.json", slo=(f"default:ttft_ms={FAR_MS}",))
        assert result["overall"]["met"] == 4


def test_requests_without_a_class_are_judged_by_the_servers_default_class(tmp_path: Path) -> None:
    with serve(_paths(stream_reply(chat_events(3)))) as server:
        _, result = _bench(server.url, tmp_path / "result.json")
    assert result["overall"]["met"] == 4


def test_json_on_stdout_leaves_the_table_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with serve(_paths(stream_reply(chat_events(3)))) as server:
        config = BenchConfig(server.url, rate=500.0, requests=2, json_path="-", max_send_lag=1e6)
        assert main_bench(config) == EXIT_VALID
    captured = capsys.readouterr()
    assert json.loads(captured.out)["overall"]["met"] == 2
    assert "outcomes by class" in captured.err
    assert "outcomes by class" not in captured.out


def test_a_run_whose_client_lags_is_invalid(tmp_path: Path) -> None:
    with serve(_paths(stream_reply(chat_events(3)))) as server:
        code, result = _bench(server.url, tmp_path / "result.json", max_send_lag=0.0, requests=3)
    assert code == EXIT_INVALID
    assert result["valid"] is False
    assert "ms late at p99" in result["invalid_reasons"][0]


def test_a_run_in_which_everything_fails_is_invalid(tmp_path: Path) -> None:
    with serve(_paths(json_reply(400, {"error": {"message": "no"}}))) as server:
        code, result = _bench(server.url, tmp_path / "result.json")
    assert code == EXIT_INVALID
    assert result["invalid_reasons"] == ["every request failed"]
    assert result["errors"] == [{"status": 400, "code": None, "count": 4, "example": "HTTP 400: no"}]


def _closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def test_an_unreachable_server_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_bench(BenchConfig(f"http://127.0.0.1:{_closed_port()}")) == EXIT_NOT_RUN
    error = capsys.readouterr().err
    assert "cannot reach http://127.0.0.1" in error
    assert "Is the server running there?" in error


@pytest.mark.parametrize(
    ("paths", "options", "tells"),
    [
        (_paths(MODELS), {"classes": ("gold",)}, "no class 'gold': its classes are interactive, batch"),
        (_paths(MODELS), {"classes": ("batch:x",)}, "share is 'x'"),
        (_paths(MODELS), {"slo": ("gold:ttft_ms=1",)}, "'gold' is not sent"),
        (_paths(MODELS), {"json_path": "/no/such/directory/result.json"}, "no such directory"),
        ({"/v1/models": json_reply(401, {})}, {}, "--api-key"),
        ({"/v1/models": json_reply(503, {"error": {"message": "loading"}})}, {}, "not ready: HTTP 503: loading"),
        ({}, {}, "--model"),
    ],
)
def test_what_cannot_run_says_why(
    paths: dict[str, Reply], options: dict[str, Any], tells: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(paths) as server:
        assert main_bench(BenchConfig(server.url, **options)) == EXIT_NOT_RUN
    assert tells in capsys.readouterr().err
    assert not server.requests_to(CHAT)


@pytest.mark.parametrize(
    ("options", "tells"),
    [
        ({"json_path": "."}, "cannot write the result to .: it is a directory"),
        ({"html_path": "."}, "cannot write the result to .: it is a directory"),
        ({"requests_path": "."}, "cannot write the result to .: it is a directory"),
        ({"json_path": "x", "html_path": "x"}, "--json and --html are the same file, x"),
        ({"html_path": "x", "requests_path": "x"}, "--html and --requests-path are the same file, x"),
        ({"json_format": "vllm"}, "--format vllm is of the JSON, which goes nowhere: add --json PATH"),
    ],
)
def test_a_result_that_would_be_lost_is_refused_before_anything_is_asked(
    options: dict[str, Any],
    tells: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with serve(_paths(MODELS)) as server:
        assert main_bench(BenchConfig(server.url, **options)) == EXIT_NOT_RUN
    assert tells in " ".join(capsys.readouterr().err.split())
    assert not server.requests_to("/v1/models")
    assert not list(tmp_path.iterdir())


def test_the_page_is_written_though_the_json_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()

    async def remove_then_answer(_: Received) -> AsyncGenerator[bytes, None]:
        if directory.exists():
            directory.rmdir()
        yield b""

    with serve(_paths(remove_then_answer)) as server:
        config = BenchConfig(
            server.url,
            requests=1,
            rate=500.0,
            max_send_lag=1e12,
            progress=False,
            json_path=str(directory / "result.json"),
            html_path=str(tmp_path / "result.html"),
        )
        assert main_bench(config) == EXIT_NOT_RUN
    assert "cannot write the result to" in capsys.readouterr().err
    assert "<html" in (tmp_path / "result.html").read_text()


def test_https_to_a_port_without_tls_names_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_in_plain_text() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = threading.Thread(target=answer_in_plain_text)
        server.start()
        port = listener.getsockname()[1]
        assert main_bench(BenchConfig(f"https://127.0.0.1:{port}")) == EXIT_NOT_RUN
        server.join()
    assert f"It does not speak TLS: try http://127.0.0.1:{port}" in " ".join(capsys.readouterr().err.split())


def test_a_server_without_a_model_is_named_by_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    with serve({}) as server:
        assert main_bench(BenchConfig(server.url)) == EXIT_NOT_RUN
    assert f"{server.url}/v1/models lists no model" in " ".join(capsys.readouterr().err.split())


def test_requests_that_an_engine_took_with_it_failed(tmp_path: Path) -> None:
    died = json_reply(503, {"error": {"message": "the engine died", "code": "engine_died"}})
    with serve(_paths(died)) as server:
        code, result = _bench(server.url, tmp_path / "result.json")
    assert (code, result["overall"]["failed"], result["overall"]["refused"]) == (EXIT_INVALID, 4, 0)
    assert result["invalid_reasons"] == ["every request failed"]


def test_a_bad_url_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_bench(BenchConfig("http://host:port/")) == EXIT_NOT_RUN
    assert "is no URL" in capsys.readouterr().err


def test_a_url_with_a_password_is_refused_since_reports_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_bench(BenchConfig("http://me:secret@127.0.0.1:9/")) == EXIT_NOT_RUN
    error = capsys.readouterr().err
    assert "--api-key" in error
    assert "secret" not in error
