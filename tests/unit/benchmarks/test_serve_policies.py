"""The comparison of policies over HTTP without a server: what is sent, read, judged, predicted and shown."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders import Peer, ServedPolicy, Site
from benchmarks.load_figures import ALL, Agreement, Comparison, agreement_table, figures_of, measured_table
from benchmarks.predicted_load import predict_run
from benchmarks.serve_policies import Plan, common_classes
from benchmarks.served_load import ServedLoad, ServedRun, planned_alike, read_run
from benchmarks.step_totals import StepTotals, parse_step_totals
from benchmarks.way_to_client import read_server_ttfts, ways_s
from loadgen.metrics import Outcome
from loadgen.trace import Chunk, RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses
from server.slo_table import load_slo_classes
from tests.simulations import FIXED_S, HEAD_S, LAYER_S, NUM_LAYERS, PER_ROW_S, make_machine

CLASSES = SLOClasses()
STEP_S = NUM_LAYERS * LAYER_S + HEAD_S + FIXED_S


def served(
    index: int, name: str, due_s: float, ttft_s: float, tpot_s: float, num_tokens: int = 5, prompt: int = 64
) -> RequestTrace:
    """A token every `tpot_s`."""
    first_s = due_s + ttft_s
    chunks = [Chunk(first_s + i * tpot_s, 1) for i in range(num_tokens)]
    planned = PlannedRequest(index, name, due_s, "", prompt, num_tokens)
    return RequestTrace(
        planned,
        due_s,
        due_s,
        chunks=chunks,
        finished_s=chunks[-1].time_s,
        end=TraceEnd.COMPLETED,
        num_prompt_tokens=prompt,
    )


def turned_away(index: int, name: str, due_s: float, end: TraceEnd) -> RequestTrace:
    return RequestTrace(PlannedRequest(index, name, due_s, "", 64, 5), due_s, due_s, finished_s=due_s, end=end)


FIRST = ServedRun(
    (
        served(0, "interactive", 0.0, 0.2, 0.04),  # in time by all
        served(1, "interactive", 1.0, 0.4, 0.08),  # a token is due every 50 ms by its class, every 100 ms by all
        served(2, "standard", 2.0, 2.0, 0.04, prompt=1200),  # 3.36 s by its class, 1 s by all
        turned_away(3, "standard", 4.0, TraceEnd.EXPIRED),
    ),
    window_s=4.0,
)
SECOND = ServedRun(
    (
        served(0, "interactive", 0.0, 0.6, 0.04),
        turned_away(1, "interactive", 1.0, TraceEnd.REFUSED),
        served(2, "standard", 2.0, 0.5, 0.2, prompt=1200),  # too slow by both
        turned_away(3, "standard", 4.0, TraceEnd.TIMED_OUT),
    ),
    window_s=6.0,
)


def test_rounds_are_counted_together_and_apart() -> None:
    found = figures_of([FIRST, SECOND], CLASSES)
    short, long, both = found["interactive"], found["standard"], found[ALL]
    assert (short.summary.num_sent, short.summary.outcomes[Outcome.MET], short.num_refused) == (4, 3, 1)
    assert (long.summary.num_sent, long.summary.outcomes[Outcome.MET], long.summary.num_late) == (4, 0, 2)
    assert (long.num_refused, long.num_failed) == (1, 1)
    assert short.by_round == (1.0, 0.5)
    assert both.by_round == (0.5, 0.25)
    assert both.summary.offered_attainment == pytest.approx(3 / 8)
    assert short.summary.goodput_per_s == pytest.approx(3 / 10)
    assert short.summary.ttft is not None and short.summary.ttft.p50_s == pytest.approx(0.4)
    assert short.summary.tpot is not None and short.summary.tpot.p50_s == pytest.approx(0.04)


def test_own_targets_judge_otherwise() -> None:
    found = figures_of([FIRST, SECOND], CLASSES)
    assert found["interactive"].own_attainment == pytest.approx(2 / 4)
    assert found["standard"].own_attainment == pytest.approx(1 / 4)
    assert found[ALL].own_attainment == pytest.approx(3 / 8)


def test_a_bench_that_counted_otherwise_is_not_believed() -> None:
    counted = ServedRun(FIRST.traces, FIRST.window_s, met_by_class={"interactive": 2, "standard": 0})
    agreeing = ServedRun(FIRST.traces, FIRST.window_s, met_by_class={"interactive": 2})
    assert figures_of([counted], CLASSES) == figures_of([agreeing], CLASSES)
    wrong = ServedRun(FIRST.traces, FIRST.window_s, met_by_class={"interactive": 1, "standard": 0})
    with pytest.raises(ValueError, match="interactive: the bench counts 1"):
        figures_of([wrong], CLASSES)


def test_table_of_what_was_measured() -> None:
    table = measured_table({("fcfs+caps", 0.79): figures_of([FIRST, SECOND], CLASSES)})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    assert rows[2] == [
        *("fcfs+caps", "0.79", "interactive", "4", "3", "0", "1", "0"),
        *("75%", "100%, 50%", "50%", "0.30", "400", "596", "40", "79"),
    ]


def test_saved_requests_are_read_again(tmp_path: Path) -> None:
    load = ServedLoad(0.79, 2, seed=7)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(saved_result(load)))
    run = read_run(path, load)
    completed, refused = run.traces
    assert completed.chunks == [Chunk(0.7, 1), Chunk(0.9, 2)]
    assert (completed.end, refused.end) == (TraceEnd.COMPLETED, TraceEnd.REFUSED)
    assert (completed.num_uncached_tokens, completed.num_output_tokens) == (1195, 3)
    assert (run.window_s, run.problems, run.met_by_class) == (2.5, ("late",), {"standard": 1})
    with pytest.raises(ValueError, match="seed 7, wanted is 8"):
        read_run(path, ServedLoad(0.79, 2, seed=8))


def saved_result(load: ServedLoad) -> dict[str, Any]:
    """As `headrace bench --save-requests` writes it, what is not read left out."""
    arguments = load.arguments("http://host", None, Path("x"))

    def values(option: str) -> list[str]:
        return [value for key, value in itertools.pairwise(arguments) if key == option]

    config = {"rate": float(values("--rate")[0]), "requests": 2, "seed": 7}
    unknown = dict.fromkeys(("error", "prompt_tokens", "cached_prompt_tokens", "output_tokens"))
    base: dict[str, Any] = {**unknown, "chunks": []}
    first = {"index": 0, "slo_class": "standard", "outcome": "met", "intended_s": 0.5, "sent_s": 0.5}
    counts = {"prompt_tokens": 1203, "cached_prompt_tokens": 8, "output_tokens": 3, "chunks": [[0.7, 1], [0.9, 2]]}
    second = {"index": 1, "slo_class": "standard", "outcome": "refused", "intended_s": 2.5, "sent_s": 2.5}
    return {
        "config": config | {"classes": values("--class"), "slo": values("--slo")},
        "interrupted": False,
        "arrival_window_s": 2.5,
        "invalid_reasons": ["late"],
        "classes": {"standard": {"met": 1}},
        "requests": [base | first | counts | {"finished_s": 0.9}, base | second | {"finished_s": 2.6}],
    }


def test_lengths_are_known_where_any_server_told_them() -> None:
    refused = turned_away(1, "standard", 1.0, TraceEnd.REFUSED)
    told = served(1, "standard", 1.0, 0.1, 0.01, prompt=1207)
    unknown = turned_away(2, "standard", 2.0, TraceEnd.REFUSED)
    planned = planned_alike([[refused, unknown], [told, unknown]])
    assert [(p.index, p.offset_s, p.num_prompt_tokens) for p in planned] == [(1, 1.0, 1207), (2, 2.0, 64)]


def test_runs_of_other_requests_are_not_compared() -> None:
    with pytest.raises(ValueError, match="the same requests"):
        planned_alike([[served(0, "standard", 1.0, 0.1, 0.01)], []])
    rounded = served(0, "standard", 1.000001, 0.1, 0.01)
    assert len(planned_alike([[served(0, "standard", 1.0, 0.1, 0.01)], [rounded]])) == 1
    with pytest.raises(ValueError, match="the same requests"):
        planned_alike([[served(0, "standard", 1.0, 0.1, 0.01)], [served(0, "standard", 1.1, 0.1, 0.01)]])


def test_prediction_of_requests_that_meet_no_other() -> None:
    planned = [PlannedRequest(i, name, 10.0 * i, "", 64, 5) for i, name in enumerate(("interactive", "standard"))]
    run = predict_run(make_machine(), SchedulerConfig(scheduler_policy="fcfs"), CLASSES, planned, window_s=10.0)
    found = figures_of([run], CLASSES)
    prefill_s = STEP_S + NUM_LAYERS * 63 * PER_ROW_S
    for name in ("interactive", "standard"):
        summary = found[name].summary
        assert (summary.num_sent, summary.outcomes[Outcome.MET]) == (1, 1)
        assert summary.ttft is not None and summary.ttft.p50_s == pytest.approx(prefill_s)
        assert summary.tpot is not None and summary.tpot.p50_s == pytest.approx(STEP_S)
    assert [trace.num_output_tokens for trace in run.traces] == [5, 5]
    steps = found[ALL].steps
    assert steps is not None and steps.num_steps == 10
    assert steps.seconds == pytest.approx(2 * (prefill_s + 4 * STEP_S))


def test_prediction_refuses_what_the_policy_refuses() -> None:
    """More at once than can be in time: with promises some are turned away, without them all are served."""
    planned = [PlannedRequest(i, "interactive", 0.001 * i, "", 1200, 40) for i in range(12)]
    refused = {}
    for text in ("deadline+promise", "deadline+caps"):
        run = predict_run(make_machine(), ServedPolicy.parse(text).scheduler(), CLASSES, planned, window_s=1.0)
        refused[text] = figures_of([run], CLASSES)["interactive"].num_refused
    assert refused["deadline+promise"] > 0 == refused["deadline+caps"]


def test_agreement_counts_what_is_near_enough() -> None:
    near = Agreement(*(Comparison(*pair) for pair in ((1.1, 1.0), (3.0, 1.0), (0.9, 1.0), (0.95, 0.9), (0.5, None))))
    far = Agreement(*(Comparison(*pair) for pair in ((1.11, 1.0), (1.0, 1.0), (0.89, 1.0), (0.96, 0.9), (0.2, 0.2))))
    table = agreement_table({("edf+caps", 2.0): {"interactive": near, "standard": far, ALL: far}})
    assert "TTFT medians within 10%: 1 of 2; TPOT medians: 1 of 2; attainment within 5 points: 1 of 2" in table
    assert "by own targets: 1 of 1" in table
    assert "| edf+caps | 2 | interactive | 1,100 / 1,000 (1.10) | 3,000 / 1,000 (3.00) | 900 / 1,000 (0.90) |" in table
    assert "| 95% / 90% (+5) | 50% / - |" in table


def test_steps_by_the_metrics_of_a_server(tmp_path: Path) -> None:
    def metrics(count: float, seconds: float) -> str:
        lines = ['headrace_step_seconds_bucket{le="0.1"} 3.0', f"headrace_step_seconds_count {count}"]
        return "\n".join(["# TYPE headrace_step_seconds histogram", *lines, f"headrace_step_seconds_sum {seconds}", ""])

    found = parse_step_totals(metrics(50.0, 2.5)).since(parse_step_totals(metrics(10.0, 0.5)))
    assert found.num_steps == 40
    assert found.mean_s == pytest.approx(0.05)
    found.write(tmp_path / "steps.json")
    assert StepTotals.read(tmp_path / "steps.json") == found
    with pytest.raises(ValueError, match="no headrace_step_seconds"):
        parse_step_totals("headrace_step_seconds_other 1.0\n")


def test_steps_stand_beside_those_of_all_classes() -> None:
    one, other = StepTotals(100, 2.0), StepTotals(50, 1.1)
    runs = [ServedRun(FIRST.traces, 4.0, steps=steps) for steps in (one, other)]
    total = Agreement.of(figures_of(runs[:1], CLASSES)[ALL], figures_of(runs, CLASSES)[ALL])
    assert total.num_steps == Comparison(100, 150)
    assert total.mean_step is not None and total.mean_step.ratio == pytest.approx(0.02 / (3.1 / 150))
    assert figures_of([*runs, FIRST], CLASSES)[ALL].steps is None


def test_the_way_is_what_the_server_does_not_see(tmp_path: Path) -> None:
    def line(arrival_s: float, prompt: int, first_s: float | None) -> str:
        chunks = [] if first_s is None else [[first_s, 1], [first_s + 1.0, 1]]
        choices = [{"chunks": chunks}]
        return json.dumps({"arrival_s": arrival_s, "num_prompt_tokens": prompt, "choices": choices})

    path = tmp_path / "log.jsonl"
    lines = [line(101.0, 64, 101.5), line(100.0, 70, 100.25), line(99.0, 5, 99.1), line(102.0, 64, None)]
    path.write_text("\n".join(lines) + "\n")
    known = read_server_ttfts(path, num_skipped=1)
    assert [prompt for prompt, _ in known] == [70, 64, 64]
    assert [ttft_s for _, ttft_s in known] == [pytest.approx(0.25), pytest.approx(0.5), None]
    runs = [
        [served(0, "standard", 0.0, 0.26, 0.01, prompt=70), served(1, "standard", 1.0, 0.53, 0.01)],
        [turned_away(0, "standard", 0.0, TraceEnd.REFUSED)],
    ]
    assert ways_s(runs, known) == pytest.approx([0.01, 0.03])
    assert ways_s(runs, [(71, 0.25), *known[1:]]) == pytest.approx([0.03])
    with pytest.raises(ValueError, match="3 requests were sent, the server's log has 2"):
        ways_s(runs, known[1:])


def test_every_round_begins_with_another_and_has_its_own_requests(tmp_path: Path) -> None:
    contenders = (ServedPolicy.parse("edf+caps"), ServedPolicy.parse("deadline+promise"), Peer("x", "http://y", None))
    plan = Plan(contenders, (0.79, 2.37), 4, 60, 1, Site("model", 2, None, tmp_path))
    assert [plan.order(index)[0].name for index in range(4)] == ["edf+caps", "deadline+promise", "x", "edf+caps"]
    assert all(set(plan.order(index)) == set(contenders) for index in range(4))
    seeds = [plan.load(rate, index).seed for rate in plan.rates for index in range(4)]
    assert len(set(seeds)) == len(seeds)


def test_contenders_by_their_names(tmp_path: Path) -> None:
    peer = Peer.parse("vllm=http://127.0.0.1:8401,model=smollm2")
    assert (peer.name, peer.url, peer.model) == ("vllm", "http://127.0.0.1:8401", "smollm2")
    assert Peer.parse("a-1=https://host").model is None
    policy = ServedPolicy.parse("edf+caps")
    assert (policy.name, policy.scheduler().scheduler_policy, policy.scheduler().admission) == (
        *("edf+caps", "edf"),
        "caps",
    )
    assert "--classes" in policy.arguments(Site("model", 1, tmp_path / "classes.toml", tmp_path))
    for text in ("edf", "edf+none", "random+caps"):
        with pytest.raises(ValueError, match="write one of"):
            ServedPolicy.parse(text)
    with pytest.raises(ValueError, match="write NAME=URL"):
        Peer.parse("http://127.0.0.1:8401")


def test_class_file_of_the_common_targets(tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(common_classes())
    classes = load_slo_classes(str(path), None)
    assert classes.names == ("interactive", "standard")
    for c in classes:
        built_in = CLASSES.get(c.name)
        assert (c.ttft_s(1200), c.tpot_s, c.max_stall_s) == (1.0, 0.1, None)
        assert (c.protected, c.when_infeasible, c.degrade_to, c.share) == (
            *(built_in.protected, built_in.when_infeasible),
            *(built_in.degrade_to, built_in.share),
        )
