"""The experiments on policies: tiny runs, resumed files, injected prompts and intervals."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from benchmarks.paired_bootstrap import paired_ratio
from benchmarks.policy_jobs import Capacity, Outcome, Tuning
from benchmarks.policy_trial import Site, Trial, Variant
from benchmarks.policy_workloads import HOST_MIX, LongPrompts, TraceWindows, bursty_mix, steady_mix, trace_windows
from benchmarks.scheduler_policies import main
from engine.simulation.replayed_load import SeenRequest

SITE = Site("rtx-4090", "llama-3-8b", 4)
TRIAL = Trial(SITE, steady_mix(HOST_MIX, 40), Variant("priority"), 512, 3)


def test_a_tiny_run_prints_its_tables_and_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    arguments = ["E2", "E3", "--quick", "--processes", "1", "--json", str(path), "--policies", "priority", "deadline"]
    main([*arguments, "--admission", "caps"])
    first = capsys.readouterr()
    for text in ("### E2: capacity at 99%", "### E3", "| bursts | fcfs+caps |", "| bursts | 1.5 | deadline+caps |"):
        assert text in first.out
    kept = json.loads(path.read_text())
    assert len(kept) == first.err.count("|rtx-4090 ") > 6
    main([*arguments, "--admission", "caps"])
    again = capsys.readouterr()
    assert (again.out, again.err) == (first.out, "")


def test_a_search_that_is_broken_off_early_finds_what_whole_runs_do() -> None:
    goal = 0.9
    for rate in (5.0, 20.0, 40.0, 80.0):
        whole = TRIAL.outcome(rate)["protected"]
        assert TRIAL.attainment(rate, goal) == pytest.approx(whole if whole >= goal else 0.0)


def test_capacity_is_where_the_goal_is_just_met_and_tuning_takes_the_best_budget() -> None:
    found = Capacity(TRIAL, 0.9, 30.0).run()["capacity_per_s"]
    assert TRIAL.attainment(found, 0.9) >= 0.9 > TRIAL.attainment(found * 1.03, 0.9)
    by_budget = {
        budget: Capacity(dataclasses.replace(TRIAL, budget=budget), 0.9, 30.0).run()["capacity_per_s"]
        for budget in (64, 512)
    }
    tuned = Tuning(TRIAL, (64, 512), 0.9).run()
    assert tuned["capacity_per_s"] == pytest.approx(max(by_budget.values()), rel=0.03)
    assert by_budget[tuned["budget"]] == max(by_budget.values())


def test_an_outcome_adds_up_and_is_a_function_of_the_trial() -> None:
    values = Outcome(TRIAL, 40.0).run()
    assert values == Outcome(TRIAL, 40.0).run()
    assert values != Outcome(dataclasses.replace(TRIAL, seed=4), 40.0).run()
    assert sum(found["sent"] for found in values["classes"].values()) == 40
    protected = [values["classes"][name] for name in ("realtime", "interactive", "standard")]
    assert values["protected"] == sum(f["met"] for f in protected) / sum(f["sent"] for f in protected)
    assert sum(values["step_share"].values()) == pytest.approx(1.0)
    promised = [values["classes"][name] for name in ("realtime", "interactive")]
    assert values["promises"] == sum(found["admitted"] for found in promised)
    assert values["promises_kept"] == sum(found["met"] for found in promised)


def test_equal_seeds_give_every_policy_the_same_arrivals() -> None:
    load = bursty_mix(HOST_MIX, 60)
    assert load.traffic(3.0, 1, 4096) == load.traffic(3.0, 1, 4096) != load.traffic(3.0, 2, 4096)


def test_a_window_of_a_trace_is_one_by_the_seed_at_the_rate_asked_for() -> None:
    rows = tuple(SeenRequest(float(i), 10 + i, 5) for i in range(100))
    windows = TraceWindows("t", rows, HOST_MIX, 20)
    starts = set()
    for seed in range(8):
        requests = windows.traffic(4.0, seed, 4096).requests
        lengths = [len(request.prompts[0]) for request in requests]
        assert lengths == list(range(lengths[0], lengths[0] + 20))
        assert requests[-1].arrival_s == pytest.approx(19 / 4.0)
        starts.add(lengths[0])
    assert len(starts) > 4


def test_rows_of_one_tick_are_spread_over_it(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    row = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    path.write_text("".join(json.dumps({"timestamp": 3000 * (i // 5), **row}) + "\n" for i in range(50)))
    times = [seen.t_s for seen in trace_windows("m", path, 10, has_coarse_clock=True).rows]
    assert len(set(times)) == 50 and times == sorted(times)


def test_long_prompts_come_between_the_others_and_change_none() -> None:
    base = steady_mix(HOST_MIX, 200)
    injected = LongPrompts(base, 3000, period_s=5.0).traffic(10.0, 0, 4096).requests
    plain = base.traffic(10.0, 0, 4096).requests
    long = [request for request in injected if len(request.prompts[0]) == 3000]
    assert [request.arrival_s for request in long] == [2.5 + 5.0 * i for i in range(int(plain[-1].arrival_s / 5.0))]
    assert [request for request in injected if request not in long] == list(plain)
    assert [r.arrival_s for r in injected] == sorted(r.arrival_s for r in injected)
    assert len({r.group_id for r in injected}) == len(injected)


def test_an_interval_holds_the_mean_and_narrows_to_it() -> None:
    alike = paired_ratio([[(2.2, 2.0)] * 5])
    assert (alike.mean, alike.low, alike.high) == pytest.approx((1.1, 1.1, 1.1))
    spread = paired_ratio([[(2.0, 1.0), (1.0, 2.0), (4.0, 1.0), (1.0, 1.0), (3.0, 1.0)]])
    assert spread.mean == pytest.approx(12 ** (1 / 5))
    assert spread.low < spread.mean < spread.high
    # Of normal logarithms about m, the mean of n lies within m +- 1.96 s / sqrt(n) in 95 of 100 samples.
    logs = [0.1 + 0.05 * math.sin(7 * i) for i in range(60)]
    deviation = math.sqrt(sum((x - sum(logs) / 60) ** 2 for x in logs) / 60 / 60)
    found = paired_ratio([[(math.exp(x), 1.0) for x in logs]])
    assert math.log(found.high / found.mean) == pytest.approx(1.96 * deviation, rel=0.15)
    with pytest.raises(ValueError, match="no pair"):
        paired_ratio([[]])


def test_strata_are_not_mixed() -> None:
    """Two workloads whose ratios differ, but not within: there is nothing to be unsure of."""
    found = paired_ratio([[(2.0, 1.0)] * 4, [(8.0, 1.0)] * 4])
    assert (found.low, found.mean, found.high) == pytest.approx((4.0, 4.0, 4.0))
