"""`headrace simulate` as it is typed: table, JSON, the load it finds, and what is said where an option is wrong."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.plan_model import PlannedModel, built_in_model
from engine.simulation import machine
from offload.hardware import find_hardware
from offload.record import PerformanceRecord
from offload.step_load import StepLoad
from scheduler.config import SchedulerConfig
from server.cli import SIMULATE_OPTIONS, app
from tests.record_builders import FIXED_S, HEAD_PER_ROW_S, HEAD_S, OVERHEAD_PER_ROW_S, make_record, true_layer_s

MIX = ("--mix", "realtime:2,prompt=200-800,output=10-20", "--mix", "batch:1,prompt=500,output=20")
SHAPE = ("llama-3-8b", "--gpu", "h100")
KEYS = {
    "sent",
    "met",
    "refused",
    "expired",
    "cancelled",
    "late_ttft",
    "late_tpot",
    "late_stall",
    "late_e2e",
    "refusals",
    "offered_attainment",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *arguments])


def values_of(path: Path, *arguments: str) -> dict[str, Any]:
    result = run("llama-3-8b", "--gpu", "h100", *MIX, *arguments, "--json", str(path))
    assert result.exit_code == 0, result.output
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def test_a_simulation_is_shown_and_written_and_is_a_function_of_its_seed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.json" for name in ("a", "b", "c")]
    for path, seed in zip(paths, ("4", "4", "5"), strict=True):
        values = values_of(path, "--rate", "30", "--requests", "40", "--seed", seed)
    assert paths[0].read_bytes() == paths[1].read_bytes() != paths[2].read_bytes()
    assert values["overall"]["sent"] == 40 == sum(found["sent"] for found in values["classes"].values())
    assert list(values["classes"]) == ["realtime", "batch"]
    assert all(KEYS | {"admitted_attainment"} <= set(found) for found in values["classes"].values())
    assert 0.0 < values["arrivals_s"] < values["duration_s"]
    assert (values["rate_per_s"], values["capacity_per_s"], values["policy"]) == (30.0, None, "deadline")
    assert values["mix"] == [
        {"class": "realtime", "share": 2.0, "prompt_tokens": [200, 800], "output_tokens": [10, 20]},
        {"class": "batch", "share": 1.0, "prompt_tokens": [500, 500], "output_tokens": [20, 20]},
    ]
    plain = {"noise": 1.0, "cv": 1.0, "burst": 1.0, "cancel": 0.0, "streamed_layers": 0, "trace": None}
    assert plain | {"classes_file": None} == {key: values[key] for key in (*plain, "classes_file")}


def test_json_on_stdout_leaves_the_table_to_stderr() -> None:
    result = run(*SHAPE, *MIX, "--rate", "30", "--requests", "20", "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["overall"]["sent"] == 20
    assert "20 requests at 30/s" in result.stderr and "overall" in result.stderr


@pytest.mark.parametrize("policy", ["--policy", "--scheduler-policy"])
def test_heading_names_what_is_not_plain_and_the_admission_in_force(policy: str) -> None:
    options = ("--noise", "1.2", "--cv", "2", "--burst", "3", "--streamed-layers", "2")
    result = run(*SHAPE, *MIX, "--rate", "5", "--requests", "10", policy, "fcfs", *options)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1] == "policy fcfs, admission caps, seed 0", "fcfs makes no promises"
    mix = "--mix realtime:2,prompt=200-800,output=10-20 --mix batch:1,prompt=500,output=20"
    assert lines[2] == f"{mix} --noise 1.2 --cv 2 --burst 3 --streamed-layers 2"


def test_cancelled_requests_have_a_column_where_there_are_any_and_count_for_no_share(tmp_path: Path) -> None:
    path, arguments = tmp_path / "out.json", (*SHAPE, *MIX, "--rate", "30", "--requests", "80")
    assert "cancelled" not in run(*arguments).output
    result = run(*arguments, "--cancel", "0.4", "--json", str(path))
    found = json.loads(path.read_text())["overall"]
    head, overall = (next(s.split() for s in result.output.splitlines() if s.startswith(n)) for n in ("class", "over"))
    assert int(overall[head.index("cancelled")]) == found["cancelled"] > 0
    assert found["offered_attainment"] == found["met"] / (found["sent"] - found["cancelled"])
    assert found["admitted_attainment"] == found["met"] / (found["admitted"] - found["cancelled"])


def test_json_tells_why_requests_were_refused_and_what_bounded_steps(tmp_path: Path) -> None:
    values = values_of(tmp_path / "o", "--rate", "300", "--requests", "150", "--max-num-seqs", "16")
    for found in (values["overall"], *values["classes"].values()):
        assert sum(found["refusals"].values()) == found["refused"] + found["expired"]
    assert values["classes"]["realtime"]["refusals"]["slo_unattainable"] > 0
    assert 0 < values["steps_limited"]["no_seat"] <= values["steps"] <= values["turns"]


def test_noise_bursts_and_leaving_clients_change_the_run_and_are_functions_of_the_seed(tmp_path: Path) -> None:
    path, arguments = tmp_path / "out.json", ("--rate", "30", "--requests", "80")
    plain = values_of(path, *arguments)
    assert plain["overall"]["cancelled"] == 0
    for option, value in (("noise", "1.3"), ("burst", "3"), ("cv", "2"), ("cancel", "0.4")):
        changed, again = (values_of(path, *arguments, f"--{option}", value) for _ in range(2))
        assert changed == again
        assert changed["overall"] != plain["overall"]
    assert changed["overall"]["cancelled"] > 0


def test_streamed_layers_bound_a_step_and_leave_more_memory(tmp_path: Path) -> None:
    """Eight of 32 layers of 436 MB a step, at 52 GB/s."""
    arguments = ("--rate", "1", "--requests", "10")
    plain, streamed = (values_of(tmp_path / "o", *arguments, "--streamed-layers", k) for k in ("0", "8"))
    layer_bytes = 2 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336)
    link = find_hardware("h100").link
    assert streamed["overall"]["tpot_s"]["p50"] == pytest.approx(8 * layer_bytes / link.h2d_bytes_per_s, rel=0.05)
    # Two slots stay; a block is 16 tokens of 128 KiB.
    assert streamed["kv_blocks"] - plain["kv_blocks"] == pytest.approx(6 * layer_bytes / (16 * 2**17), abs=2)


def test_the_table_has_a_line_for_each_class_and_one_for_all() -> None:
    result = run("llama-3-8b", "--gpu", "h100", *MIX, "--rate", "30", "--requests", "20")
    for text in ("NVIDIA H100", "20 requests at 30/s", "realtime", "batch", "overall", "100.0%"):
        assert text in result.output


def test_load_is_a_multiple_of_the_capacity_of_priority_for_every_policy(tmp_path: Path) -> None:
    values = [
        values_of(tmp_path / "out.json", "--load", "1.5", "--requests", "120", "--policy", policy)
        for policy in ("priority", "fcfs")
    ]
    assert values[0]["capacity_per_s"] == values[1]["capacity_per_s"] > 0
    for found in values:
        assert found["rate_per_s"] == pytest.approx(1.5 * found["capacity_per_s"], rel=1e-12)
    priority, fcfs = (found["classes"]["realtime"]["offered_attainment"] for found in values)
    assert fcfs < priority < 0.9
    rate, caps = str(values[0]["capacity_per_s"]), ("--policy", "priority", "--admission", "caps")
    at_capacity = values_of(tmp_path / "out.json", "--rate", rate, "--requests", "120", *caps)
    assert at_capacity["classes"]["realtime"]["offered_attainment"] >= 0.9


def test_without_gpu_the_record_of_this_machine_says_what_steps_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record()

    def recorded(*_: object) -> tuple[PlannedModel, PerformanceRecord]:
        return built_in_model("llama-3-8b", "auto", None), record

    monkeypatch.setattr(machine, "recorded_model", recorded)
    path = tmp_path / "out.json"
    mix = "standard:1,prompt=64,output=2"
    result = run("llama-3-8b", "--mix", mix, "--rate", "0.01", "--requests", "1", "--json", str(path))
    assert result.exit_code == 0, result.output
    values = json.loads(path.read_text())
    assert "Imaginary Processor 9000" in values["machine"]
    beside_s = HEAD_S + HEAD_PER_ROW_S + FIXED_S + OVERHEAD_PER_ROW_S
    overall = values["overall"]
    assert overall["ttft_s"]["p50"] == pytest.approx(32 * true_layer_s(StepLoad(64, 1, 64)) + beside_s, rel=0.1)
    assert overall["tpot_s"]["p50"] == pytest.approx(32 * true_layer_s(StepLoad(1, 1, 65)) + beside_s, rel=0.1)


def test_policies_are_those_of_the_scheduler() -> None:
    (policy,) = (option for option in SIMULATE_OPTIONS if option.name == "policy")
    assert policy.choices == typing.get_args(typing.get_type_hints(SchedulerConfig)["scheduler_policy"])


def test_help_of_80_columns_shows_every_option() -> None:
    lines = CliRunner().invoke(app, ["simulate", "--help"], terminal_width=80).output.splitlines()
    assert max(map(len, lines)) <= 80
    assert {f"--{option.name}" for option in SIMULATE_OPTIONS} <= {
        s.split()[0].rstrip(",") for s in lines if s.startswith("  --")
    }


@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        (("llama-3-8b", "--gpu", "b200"), 2, ("b200", "rtx-4090", "gh200")),
        (("opt-14b", "--gpu", "a10"), 1, ("opt-14b", "Did you mean opt-13b?")),
        (("opt-13b",), 1, ("built-in shape", "--gpu ID")),
        (("llama-3-70b", "--gpu", "a10"), 1, ("141.1 GB", "another --gpu", "streamed")),
        (("llama-3-8b", "--gpu", "h100", "--rate", "1", "--load", "2"), 2, ("--rate", "--load", "give one")),
        (("llama-3-8b", "--gpu", "h100", "--requests", "0"), 2, ("--requests", "1")),
        (("llama-3-8b", "--gpu", "h100", "--policy", "lottery"), 2, ("--policy", "fcfs")),
        (("llama-3-8b", "--gpu", "h100", "--mix", "gold:1"), 1, ("--mix", "gold", "realtime, interactive")),
        (("llama-3-8b", "--gpu", "h100", "--mix", "batch:x"), 2, ("--mix 'batch:x'", "above 0")),
        (("llama-3-8b", "--gpu", "h100", "--max-model-len", "9000"), 1, ("9000", "8192")),
        (("llama-3-8b", "--gpu", "h100", "--noise", "0.5"), 2, ("--noise", "1")),
        (("llama-3-8b", "--gpu", "h100", "--cancel", "1"), 2, ("--cancel", "below 1")),
        (("llama-3-8b", "--gpu", "h100", "--trace", "t.csv", "--burst", "2"), 2, ("--trace", "--burst", "leave out")),
        (("llama-3-8b", "--gpu", "h100", "--streamed-layers", "33"), 1, ("--streamed-layers", "32 layers")),
        ((*SHAPE, "--requests", "2"), 1, ("--requests", "too few", "Raise --requests")),
        (
            (
                *SHAPE,
                "--mix",
                "standard:1",
                "--mix",
                "realtime:1,output=20",
                "--streamed-layers",
                "16",
                "--requests",
                "8",
            ),
            1,
            ("there is no capacity", "fewest of class realtime (late_tpot:", "--classes"),
        ),
        (("llama-3-8b", "--model", "opt-13b", "--gpu", "a100-80"), 2, ("give one",)),
        (("llama-3-8b", "--gpu", "h100", "--classes", "missing.toml"), 2, ("missing.toml",)),
        (
            ("llama-3-8b", "--gpu", "h100", "--rate", "1", "--requests", "1", "--json", "/nowhere/at/all.json"),
            1,
            ("--json /nowhere/at/all.json",),
        ),
    ],
)
def test_wrong_input_is_named_with_what_is_right(
    arguments: tuple[str, ...], status: int, texts: tuple[str, ...]
) -> None:
    result = run(*arguments)
    assert result.exit_code == status, result.output
    for text in texts:
        assert text in result.output


def test_a_trace_is_replayed_at_its_own_rate_or_a_given_one(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"2023-11-16 18:15:{i:02d}.0000000,{100 + i},{5 + i}" for i in range(20)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    own = values_of(tmp_path / "own.json", "--trace", str(trace))
    assert own["rate_per_s"] == pytest.approx(1.0)
    assert own["overall"]["sent"] == 20
    assert own["arrivals_s"] == pytest.approx(19.0)
    fast = values_of(tmp_path / "fast.json", "--trace", str(trace), "--rate", "4", "--requests", "9")
    assert fast["overall"]["sent"] == 9
    assert fast["arrivals_s"] == pytest.approx(2.0)


def test_a_file_that_is_no_trace_ends_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "no.csv"
    path.write_text("a,b\n1,2\n")
    result = run("llama-3-8b", "--gpu", "h100", "--trace", str(path), "--rate", "1")
    assert result.exit_code == 1
    assert str(path) in result.output
