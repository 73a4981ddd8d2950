"""`headrace compare` from the command line: two results that `headrace bench` has written, and its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loadgen.bench import EXIT_VALID, main_bench
from loadgen.compare_command import EXIT_COMPARED, EXIT_CONDITION_MET, EXIT_NOT_COMPARED
from loadgen.config import BenchConfig
from loadgen.trace import TraceEnd
from server.cli import app
from tests.fake_openai_server import chat_events, json_reply, serve, stream_reply
from tests.saved_runs import Answer, save_run

GOOD = [Answer("interactive"), Answer("batch")] * 40
BAD = [Answer("interactive", ttft_s=1.25), Answer("batch")] * 40


def _compare(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments), "--resamples", "200"])


def _text(result: Result) -> str:
    return " ".join(result.stdout.split())


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return save_run(tmp_path / "good.json", GOOD)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return save_run(tmp_path / "bad.json", BAD)


def test_two_runs_of_bench_are_compared_request_by_request(tmp_path: Path) -> None:
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    full = json_reply(429, {"error": {"message": "no room", "code": "class_queue_full"}})
    answers = [stream_reply(chat_events(3)), full]
    for path, answer in zip(paths, answers, strict=True):
        with serve(
            {"/v1/models": json_reply(200, {"data": [{"id": "tiny"}]}), "/v1/chat/completions": answer}
        ) as server:
            config = BenchConfig(
                server.url,
                rate=500.0,
                requests=40,
                slo=("default:ttft_ms=600000",),
                calibrate=False,
                max_send_lag=1e12,
                save_requests=True,
                progress=False,
                json_path=str(path),
            )
            assert main_bench(config) == EXIT_VALID
    done = _compare(*paths, "--json", tmp_path / "found.json", "--fail-if", "attainment.default<-50%")
    assert done.exit_code == EXIT_CONDITION_MET, done.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["verdict"], found["pairs"], found["without_partner"]) == ("worse", 40, 0)
    attainment = found["metrics"]["attainment.default"]
    assert (attainment["first"], attainment["second"], attainment["change"]) == (1.0, 0.0, -1.0)
    assert attainment["mcnemar_p"] == pytest.approx(2.0**-39)
    assert found["metrics"]["ttft_p50.default"]["finding"] == "too few pairs", "nothing completed in both"


def test_the_verdict_names_what_changed(good: Path, bad: Path) -> None:
    done = _compare(good, bad)
    assert done.exit_code == EXIT_COMPARED
    text = _text(done)
    assert "verdict: worse (attainment.interactive -100.00 points worse; ttft_p50.interactive +750.0 ms worse" in text
    assert "attainment.all" in text and "attainment.batch │ 40 │ 100.00% │ 100.00% │ +0.00" in text
    assert "verdict: better (attainment.interactive +100.00 points better" in _text(_compare(bad, good))
    assert "verdict: no difference shown" in _text(_compare(good, good))


def test_a_cold_and_a_warm_cache_are_told_with_both_numbers(tmp_path: Path, good: Path) -> None:
    cold, warm = (
        save_run(tmp_path / f"{num}.json", [Answer("a", ttft_s, num_prompt_tokens=1000, num_cached_tokens=num)] * 40)
        for num, ttft_s in ((52, 0.6), (951, 0.04))
    )
    done = _compare(cold, warm, "--json", tmp_path / "found.json")
    text = _text(done)
    assert "cached.a │ 40 │ 5.2% │ 95.1% │ +89.9 │ - │ - │ differs" in text
    told = "the prefix cache held 5.2% of the prompt tokens of a in the first run and 95.1% in the second"
    assert f"{told}: where it held more, first tokens came faster for that alone" in text and "--prompt-salt" in text
    assert f"verdict: no difference shown (ttft_p50.a -560.0 ms better); but {told}" in text
    share = json.loads((tmp_path / "found.json").read_text())["cached_prompt_share"]["a"]
    assert (share["first"], share["second"], share["differs"]) == (0.052, 0.951, True)
    assert "cached" not in _text(_compare(good, good)), "where no server tells of a cache"


def test_no_cell_of_the_table_is_cut(tmp_path: Path) -> None:
    names = ("interactive-with-a-long-name", "batch")
    runs = [
        save_run(tmp_path / f"{k}.json", [Answer(names[i % 2], 1e3 * k + i, tpot_s=9.0) for i in range(60)])
        for k in (1, 2)
    ]
    table = _compare(*runs).stdout
    assert "…" not in table and "ttft_p50.interactive-with-a-long-name" in table and "none shown" in table


def test_one_class_alone_is_not_shown_twice(tmp_path: Path) -> None:
    path = save_run(tmp_path / "one.json", [Answer()] * 40)
    assert "attainment.a" in _text(done := _compare(path, path)) and ".all" not in _text(done)
    assert _compare(path, path, "--fail-if", "attainment<-1%").exit_code == EXIT_COMPARED


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (("attainment.interactive<-1%",), EXIT_CONDITION_MET),
        (("attainment.batch<-1%",), EXIT_COMPARED),
        (("attainment.batch<-1%", "ttft_p50.interactive>+10%"), EXIT_CONDITION_MET),
        (("ttft_p50.interactive>+1000ms",), EXIT_COMPARED),
        (("ttft_p99.interactive>+10%",), EXIT_NOT_COMPARED),
        (("attainment.gold<-1%",), EXIT_NOT_COMPARED),
        (("attainment.batch<-1",), EXIT_NOT_COMPARED),
    ],
)
def test_conditions_decide_the_exit_code(good: Path, bad: Path, conditions: tuple[str, ...], code: int) -> None:
    done = _compare(good, bad, *(part for text in conditions for part in ("--fail-if", text)))
    assert done.exit_code == code, done.output
    assert (f"--fail-if '{conditions[-1]}'" in " ".join(done.stderr.split())) == (code == EXIT_NOT_COMPARED)
    assert ("FAILED" in done.stdout) == (code == EXIT_CONDITION_MET)


def test_other_plans_are_refused_with_what_differs(tmp_path: Path, good: Path) -> None:
    other = save_run(tmp_path / "other.json", GOOD, seed=4, requests=80)
    done = _compare(good, other)
    assert done.exit_code == EXIT_NOT_COMPARED
    assert "different plans (seed: 0, then 4; requests: none, then 80)" in done.stderr and "--unpaired" in done.stderr
    apart = _compare(good, other, "--unpaired")
    assert apart.exit_code == EXIT_COMPARED
    assert "Planned differently: seed: 0, then 4; requests: none, then 80" in _text(apart)


def test_a_run_that_must_not_be_believed_is_refused(tmp_path: Path, good: Path) -> None:
    failed = [Answer(a.slo_class, end=TraceEnd.FAILED) for a in GOOD]
    broken = save_run(tmp_path / "broken.json", failed)
    done = _compare(good, broken)
    assert done.exit_code == EXIT_NOT_COMPARED
    assert re.search(r"broken\.json must not be believed: every request failed.*--allow-invalid", done.stderr)
    allowed = _compare(good, broken, "--allow-invalid")
    assert allowed.exit_code == EXIT_COMPARED
    assert "INVALID RUN" in allowed.stdout and "verdict: worse" in allowed.stdout


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path, good: Path) -> None:
    assert "cannot read absent.json" in _compare(good, "absent.json").stderr
    done = _compare(good, good, "--json", tmp_path / "absent" / "found.json")
    assert (done.exit_code, "there is no such directory" in done.stderr) == (EXIT_NOT_COMPARED, True)
    printed = _compare(good, good, "--json", "-")
    assert json.loads(printed.stdout)["headrace_compare"] == 1
    assert "verdict:" in printed.stderr
