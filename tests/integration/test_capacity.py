"""`headrace capacity` against a scripted server: what it probes, its exit codes and its JSON.

The server decides by the number of the load test, not by time, so that no expectation depends on how fast anything is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadgen.bench import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_NOT_RUN, EXIT_VALID
from loadgen.capacity import main_capacity
from loadgen.capacity_config import CapacityConfig
from loadgen.config import BenchConfig
from server.cli import app
from tests.fake_openai_server import FakeOpenAIServer, Received, Reply, chat_events, json_reply, serve, stream_reply
from tests.trace_files import write_azure_2023

CHAT = "/v1/chat/completions"
FAR_MS = 600_000
OK = stream_reply(chat_events(2))
FULL = json_reply(429, {"error": {"message": "no room", "code": "class_queue_full"}})


def _slo(objectives: dict[str, float]) -> Reply:
    targets = {"ttft_base_ms": FAR_MS, "ttft_per_1k_tokens_ms": 0, "tpot_ms": FAR_MS, "max_stall_ms": None}
    classes = [{"name": name, "targets": targets, "objective": share} for name, share in objectives.items()]
    return json_reply(200, {"default_class": next(iter(objectives)), "classes": classes})


@contextlib.contextmanager
def _serve(refuses: Callable[[int, Received], bool]) -> AsyncGenerator[FakeOpenAIServer, None]:
    """A server of two classes; `refuses` is asked with the number of the load test, from 0."""
    paths: dict[str, Reply] = {"/v1/slo": _slo({"interactive": 0.5, "batch": 0.4})}
    with serve(paths) as server:

        async def answer(request: Received) -> AsyncGenerator[bytes, None]:
            # The search asks for the models once, then each load test does.
            run = len(server.requests_to("/v1/models")) - 2
            async with contextlib.aclosing((FULL if refuses(run, request) else OK)(request)) as parts:
                async for part in parts:
                    yield part

        paths[CHAT] = answer
        paths["/v1/models"] = json_reply(200, {"object": "list", "data": [{"id": "tiny"}]})
        yield server


CLASSES = ("interactive:0.5,prompt=8,output=2", "batch:0.5,prompt=8,output=2")


def _capacity(url: str, path: Path, bench: dict[str, Any] | None = None, **search: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a quick search; send lag is not what most of these tests are about."""
    defaults: dict[str, Any] = {"classes": CLASSES, "rate": 400.0, "requests": 10, "duration_s": 0.02}
    defaults |= {"max_send_lag": 1e12, "calibrate": False, "progress": False}
    config = BenchConfig(url, json_path=str(path), **{**defaults, **(bench or {})})
    code = main_capacity(config, CapacityConfig(**{"max_probes": 6, "prolong": 1, **search}))
    return code, json.loads(path.read_text())


def test_rates_are_doubled_then_halved_in_between(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _serve(lambda run, _: run in (2, 4, 5)) as server:
        code, found = _capacity(server.url, tmp_path / "found.json", resolution=0.2)
    assert code == EXIT_VALID
    rates = [probe["rate_per_s"] for probe in found["probes"]]
    expected = [400.0, 800.0, 1600.0, 800.0 * 2**0.5, 800.0 * 2**0.75, 800.0 * 2**0.75 * 1.25]
    assert rates == pytest.approx(expected)
    assert [probe["verdict"] for probe in found["probes"]] == [
        *("passed", "passed", "failed", "passed", "failed", "failed")
    ]
    assert found["capacity_per_s"] == pytest.approx(800.0 * 2**0.5)
    assert found["class_rates_per_s"] == pytest.approx(dict.fromkeys(("interactive", "batch"), 400.0 * 2**0.5))
    assert found["interval_per_s"] == pytest.approx({"low": 800.0 * 2**0.5, "high": 800.0 * 2**0.75})
    assert (found["resolved"], found["client_limit_per_s"], found["passed_above_failed"]) == (True, None, [])
    assert found["objectives"] == {"interactive": 0.5, "batch": 0.4}
    for probe in found["probes"]:
        for name in ("interactive", "batch"):
            count = probe["classes"][name]
            assert count["met"] == (count["judged"] if probe["verdict"] == "passed" else 0)
            assert count["judged"] > 0 and probe["sure"]
            assert count["clopper_pearson"]["low"] <= count["attainment"] <= count["clopper_pearson"]["high"]
    printed = capsys.readouterr()
    assert (
        "capacity: 1131 requests/s (interactive 565.7, batch 565.7) with interactive >= 50%, batch >= 40%"
        in printed.out
    )
    assert "surely met at 1131 and surely missed at 1345 requests/s (95%)" in printed.out
    assert len([line for line in printed.err.splitlines() if "/s passed" in line or "/s failed" in line]) == 6


def test_warm_up_and_cool_down_are_not_counted(tmp_path: Path) -> None:
    """The server refuses the first requests of each load test, which come in its warm-up."""
    first: dict[int, int] = {}

    def refuses(run: int, _: Received) -> bool:
        first[run] = first.get(run, 0) + 1
        return first[run] <= 2

    with _serve(refuses) as server:
        code, found = _capacity(
            server.url,
            tmp_path / "found.json",
            {"arrivals": "constant", "rate": 50.0},
            warm_up_share=0.3,
            max_rate=100.0,
        )
        sent = len(server.requests_to(CHAT))
    assert code == EXIT_VALID
    counts = [count for probe in found["probes"] for count in probe["classes"].values()]
    assert all(count["met"] == count["judged"] for count in counts)
    assert sum(count["judged"] for count in counts) < sent - 4
    assert (found["capacity_per_s"], found["resolved"]) == (100.0, False)


def test_a_frontier_varies_one_class_beside_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = ("interactive:rate=100,prompt=8,output=2", "batch:rate=100,prompt=8,output=2")

    def refuses(run: int, request: Received) -> bool:
        return request.headers["x-slo-class"] == "batch" or run == 2

    with _serve(refuses) as server:
        code, found = _capacity(
            server.url,
            tmp_path / "found.json",
            {"classes": classes, "rate": None},
            frontier="batch:interactive>=0.6",
            resolution=1.0,
            check_above=False,
        )
    assert code == EXIT_VALID
    assert (found["varied"], found["objectives"]) == ("batch", {"interactive": 0.6})
    assert [probe["class_rates_per_s"] for probe in found["probes"]] == [
        {"interactive": 100.0, "batch": rate} for rate in (100.0, 200.0, 400.0)
    ]
    assert found["capacity_per_s"] == 200.0
    assert all(probe["classes"]["batch"]["met"] == 0 for probe in found["probes"])
    assert "capacity: 200 requests/s of batch" in capsys.readouterr().out


def test_an_undecided_probe_is_prolonged_by_another_seed(tmp_path: Path) -> None:
    asked = {"interactive": 0}

    def refuses(_: int, request: Received) -> bool:
        """Every second request of interactive."""
        name = request.headers["x-slo-class"]
        if name == "batch":
            return False
        asked[name] += 1
        return asked[name] % 2 == 0

    with _serve(refuses) as server:
        _, found = _capacity(
            server.url, tmp_path / "found.json", max_probes=2, prolong=3, objective=("interactive=0.45",)
        )
    probe = found["probes"][0]
    assert [look["seed"] for look in probe["looks"]] == [0, 1, 2]
    assert (probe["verdict"], probe["sure"]) == ("passed", False)
    count = probe["classes"]["interactive"]
    assert count["judged"] == sum(look["counts"]["interactive"]["judged"] for look in probe["looks"])


def test_prompts_are_new_in_every_run(tmp_path: Path) -> None:
    with _serve(lambda *_: False) as server:
        _capacity(server.url, tmp_path / "found.json", max_probes=3)
        prompts = [request.body["messages"][0]["content"] for request in server.requests_to(CHAT)]
    assert len(set(prompts)) == len(prompts)


def test_a_trace_is_sent_whole_at_each_rate_with_its_time_scaled(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:17:{second:02d}.0000000,8,2" for second in range(40)]
    trace = write_azure_2023(tmp_path / "trace.csv", rows)
    bench = {"classes": ("interactive:1",), "trace_path": str(trace), "rate": 200.0, "requests": None}
    shares = {"warm_up_share": 0.115, "cool_down_share": 0.11}
    with _serve(lambda run, _: run == 1) as server:
        code, found = _capacity(server.url, tmp_path / "found.json", bench, **shares, prolong=4, max_probes=2)
        sent = server.requests_to(CHAT)
    assert code == EXIT_VALID
    assert [probe["rate_per_s"] for probe in found["probes"]] == [200.0, 400.0]
    assert [probe["class_rates_per_s"] for probe in found["probes"]] == [{}, {}]
    assert len(sent) == 2 * 40, "each once, never prolonged"
    # Row n is due n gaps after the first. Not counted: those before 4.6 gaps (0.115 x 40), and the last 4.4 of 39.
    assert [probe["classes"]["interactive"]["judged"] for probe in found["probes"]] == [len(range(5, 35))] * 2
    assert (found["capacity_per_s"], found["interval_per_s"]) == (200.0, {"low": 200.0, "high": 400.0})


def test_a_client_that_is_too_slow_is_told_by_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _serve(lambda *_: False) as server:
        code, found = _capacity(server.url, tmp_path / "found.json", {"max_send_lag": 0.0}, max_probes=2)
    assert code == EXIT_INVALID
    assert [probe["verdict"] for probe in found["probes"]] == ["invalid"] * 2
    assert (found["capacity_per_s"], found["client_limit_per_s"]) == (None, 200.0)
    assert "this client could not keep up" in capsys.readouterr().out


def test_a_server_that_fails_every_request_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _serve(lambda *_: False) as server:
        server.paths[CHAT] = json_reply(500, {"error": {"message": "oops"}})
        code, found = _capacity(server.url, tmp_path / "found.json", max_probes=2)
    assert code == EXIT_INVALID
    assert (found["capacity_per_s"], found["client_limit_per_s"]) == (None, None)
    assert "invalid: every request failed" in capsys.readouterr().out


def test_a_server_that_goes_away_leaves_what_was_probed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuses(run: int, _: Received) -> bool:
        if run == 1:
            server.paths["/v1/models"] = json_reply(503, {"error": {"message": "gone"}})
        return False

    with _serve(refuses) as server:
        code, found = _capacity(server.url, tmp_path / "found.json")
    assert code == EXIT_NOT_RUN
    assert [probe["verdict"] for probe in found["probes"]] == ["passed", "passed"]
    assert "is not ready: HTTP 503: gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("bench", "search", "message"),
    [
        ({}, {"objective": ("gold=0.9",)}, "class 'gold' is not sent"),
        ({"classes": ("gold",)}, {}, "the server has no class 'gold'"),
        ({"concurrency": 2, "rate": None}, {}, "leave out --concurrency"),
        ({}, {"frontier": "batch"}, "write VARIED:JUDGED>=SHARE"),
        ({"classes": (), "trace_path": "absent.jsonl"}, {}, "absent.jsonl"),
    ],
)
def test_what_cannot_be_searched_is_told_before_anything_is_sent(
    bench: dict[str, Any], search: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with _serve(lambda *_: False) as server:
        config = BenchConfig(server.url, **{"classes": CLASSES, "progress": False, **bench})
        assert main_capacity(config, CapacityConfig(**search)) == EXIT_NOT_RUN
        assert server.requests_to(CHAT) == []
    assert message in capsys.readouterr().err


def test_a_class_that_nobody_has_targets_for_cannot_be_judged(capsys: pytest.CaptureFixture[str]) -> None:
    with _serve(lambda *_: False) as server:
        server.paths["/v1/slo"] = json_reply(404, {})
        config = BenchConfig(
            server.url, classes=CLASSES, requests=5, duration_s=0.02, rate=400.0, calibrate=False, max_send_lag=1e12
        )
        assert main_capacity(config, CapacityConfig(objective=("batch=0.9",))) == EXIT_NOT_RUN
    assert "class 'batch' cannot be judged" in capsys.readouterr().err


def test_the_command_line_searches(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    with _serve(lambda run, _: run > 0) as server:
        arguments = ["capacity", server.url, "--class", CLASSES[0], "--class", CLASSES[1], "--rate", "300"]
        arguments += ["--requests", "10", "--duration", "0.02", "--max-send-lag", "1e12", "--no-calibrate"]
        arguments += ["--judge", "batch", "--objective", "batch=50%", "--max-probes", "2", "--json", str(path)]
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == EXIT_VALID, done.output
    found = json.loads(path.read_text())
    assert (found["capacity_per_s"], found["objectives"]) == (300.0, {"batch": 0.5})
    wrong = CliRunner().invoke(app, ["capacity", "http://x", "--resolution", "0"])
    assert (wrong.exit_code, "--resolution is 0, it must be at least 0.001" in wrong.stderr) == (2, True)


def test_ctrl_c_in_a_probe_ends_the_search_with_what_there_is(tmp_path: Path) -> None:
    async def hang(_: Received) -> AsyncGenerator[bytes, None]:
        await asyncio.Event().wait()
        yield b""

    def refuses(run: int, _: Received) -> bool:
        if run == 1:
            server.paths[CHAT] = hang  # of all that come later
            os.kill(os.getpid(), signal.SIGINT)
        return False

    with _serve(refuses) as server:
        code, found = _capacity(server.url, tmp_path / "found.json")
    assert code == EXIT_INTERRUPTED
    assert found["interrupted"]
    assert [probe["rate_per_s"] for probe in found["probes"]] == [400.0]
    assert found["capacity_per_s"] == 400.0
