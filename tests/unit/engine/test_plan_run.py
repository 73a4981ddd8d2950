"""Plans for the accelerators of the table and for this machine, without a terminal."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path

import pytest
import torch

from engine.compute_share import offload_threads
from engine.config import EngineConfig
from engine.models.weight_formats import FormatChoice
from engine.plan_config import PlanConfig
from engine.plan_model import built_in_model, built_in_names, model_in_files
from engine.plan_report import PlanReport
from engine.plan_run import ModelPlace, PlanError, plan_for_gpu, plan_for_this_machine, report_plan
from engine.record_cache import make_fingerprint
from engine.weights import load_model
from offload.hardware import HARDWARE
from offload.plan_request import PlanRequest
from offload.record_file import record_path, records_directory, write_record
from scheduler.config import SchedulerConfig
from scheduler.slo import DEFAULT_CLASSES
from tests.offload_shapes import FlatCost
from tests.record_builders import make_record
from tests.tiny_model import make_tiny_llama

ENGINE = EngineConfig(model_path="")
SCHEDULER = SchedulerConfig()


def on_gpu(name: str, gpu: str, engine: EngineConfig = ENGINE, **options: object) -> PlanReport:
    config = PlanConfig(gpu=gpu, **options)  # type: ignore[arg-type]
    return plan_for_gpu(config, ModelPlace(name, None), engine, SCHEDULER, DEFAULT_CLASSES)


@pytest.mark.parametrize(("name", "gpu"), list(zip(built_in_names(), itertools.cycle(HARDWARE), strict=False)))
def test_every_built_in_shape_and_every_accelerator_has_a_plan_or_a_reason(name: str, gpu: str) -> None:
    report = on_gpu(name, gpu)
    json.dumps(report.values)
    if report.is_feasible:
        ledger = report.values["plan"]["ledger"]
        assert sum(ledger.values()) == int(0.9 * HARDWARE[gpu].memory_bytes)
        assert len(report.notes) >= len(DEFAULT_CLASSES)
    else:
        assert report.verdict.startswith("Infeasible. ")
        assert report.notes and all(note.startswith("Option: ") for note in report.notes)


def test_a_report_names_classes_floors_and_bytes() -> None:
    report = on_gpu("llama-3-8b", "a10", device_memory_bytes=14 * 10**9)
    plan = report.values["plan"]
    classes, placement, ledger = report.tables
    assert [row[:2] for row in classes.rows if row[2] == "TPOT"] == [
        ("realtime", "closed"), ("interactive", "closed"), ("standard", "best effort"), ("batch", "open")
    ]  # fmt: skip
    shown = dict(placement.rows)  # type: ignore[arg-type]
    assert shown["streamed layers"] == f"{plan['streamed_layers']} of 32 at start"
    assert shown["KV at start"].startswith(f"{plan['kv_tokens']:,} tokens")
    assert ledger.rows[-1][1] == "14.00 GB"
    assert report.notes[-1].startswith("To serve more classes in time: quantise to 8 bits")
    assert "1 sequence of 1,024 tokens" in report.heading[2]


def test_less_precise_weights_and_a_faster_link_are_planned_with() -> None:
    whole = on_gpu("llama-3-8b", "a10").values["plan"]
    small = on_gpu("llama-3-8b", "a10", EngineConfig(model_path="", quantize="int4")).values["plan"]
    assert small["ledger"]["resident_layers"] == pytest.approx(whole["ledger"]["resident_layers"] * 0.625 / 2)
    slow, fast = (
        on_gpu("llama-3-8b", "a10", device_memory_bytes=14 * 10**9, link_gbps=gbps).values["plan"]
        for gbps in (12.0, 50.0)
    )
    assert fast["predicted_step_s"] < slow["predicted_step_s"]


def test_files_have_the_sizes_that_loading_gives(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "tiny")
    loaded = load_model(str(directory), "bfloat16", lambda _: None)
    choice = FormatChoice(torch.bfloat16, False, torch.bfloat16)
    planned = model_in_files(directory, choice, "tiny")
    slabs = tuple(layer.slab.num_bytes for layer in loaded.decoder.weights.layers)
    assert planned.shape.layer_bytes == slabs
    assert planned.shape.weights_bytes >= loaded.weights_bytes  # aligned
    assert planned.shape.weights_bytes - loaded.weights_bytes < 256 * 16
    assert (planned.shape.num_layers, planned.shape.name) == (2, "tiny")


def test_a_config_alone_is_enough(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "tiny")
    choice = FormatChoice(torch.bfloat16, False, torch.bfloat16)
    whole = model_in_files(directory, choice, "tiny")
    (directory / "model.safetensors").unlink()
    assert model_in_files(directory, choice, "tiny") == whole


def test_a_built_in_shape_takes_what_its_config_takes(tmp_path: Path) -> None:
    """The table of shapes against the path that real files go."""
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 3, "vocab_size": 49152,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, **sizes,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = model_in_files(tmp_path, FormatChoice(torch.bfloat16, False, torch.bfloat16), "smollm2-135m").shape
    built_in = built_in_model("smollm2-135m", "auto", None).shape
    assert files.layer_bytes == built_in.layer_bytes
    assert files.kv_bytes_per_token == built_in.kv_bytes_per_token
    assert files.fixed_bytes == pytest.approx(built_in.fixed_bytes, rel=0.01)
    assert (files.layer_parameters, files.num_heads) == (built_in.layer_parameters, built_in.num_heads)


def test_the_seam_takes_any_cost() -> None:
    model = built_in_model("smollm2-135m", "auto", None)
    request = PlanRequest(240 * 2**20, workspace_bytes=30 * 2**20)
    report = report_plan(model, FlatCost(rate=2e9), "a machine of the test", request, DEFAULT_CLASSES)
    assert report.is_feasible and report.values["plan"]["streamed_layers"] > 0
    assert report.heading[1] == "on a machine of the test"


@pytest.mark.parametrize(("asked", "shown"), [(None, ""), ("o/tiny", " o/tiny"), ("./my model", " './my model'")])
def test_without_a_record_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None, shown: str
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    place = ModelPlace("tiny", make_tiny_llama(tmp_path / "tiny"), asked)
    engine = EngineConfig(model_path="", kernels="torch", dtype="float32")
    with pytest.raises(PlanError, match=rf"run `headrace profile{shown} --dtype float32 --kernels torch`.*--gpu ID"):
        plan_for_this_machine(PlanConfig(), place, engine, SCHEDULER, DEFAULT_CLASSES)


def test_an_older_builds_record_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    place = ModelPlace("tiny", make_tiny_llama(tmp_path / "tiny"))
    engine = EngineConfig(model_path=str(place.path), kernels="torch", dtype="float32")
    path = record_path(records_directory(os.environ), make_fingerprint(engine, offload_threads(None), None))
    path.parent.mkdir(parents=True)
    path.write_text('{"format": "headrace-record", "version": 1}')
    with pytest.raises(PlanError, match=r"no record of tiny .*older build measured\): run `headrace profile --dtype"):
        plan_for_this_machine(PlanConfig(), place, engine, SCHEDULER, DEFAULT_CLASSES)


def test_this_machine_is_planned_by_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    place = ModelPlace("tiny", make_tiny_llama(tmp_path / "tiny", num_hidden_layers=8))
    engine = EngineConfig(model_path=str(place.path), kernels="torch", dtype="float32")
    fingerprint = make_fingerprint(engine, offload_threads(None), None)
    record = dataclasses.replace(make_record(), fingerprint=fingerprint)
    write_record(record_path(records_directory(os.environ), fingerprint), record)

    whole = plan_for_this_machine(PlanConfig(), place, engine, SCHEDULER, DEFAULT_CLASSES)
    assert whole.values["plan"]["ledger"]["kv_blocks"] == pytest.approx(engine.kv_cache_memory_bytes, rel=0.01)
    assert whole.values["request"]["restart_s"] == record.restart_s
    assert fingerprint.device in whole.heading[1]

    held = PlanConfig(device_memory_bytes=whole.values["plan"]["ledger"]["workspace"] + 2 * 2**20)
    fast, slow, emulated = (
        plan_for_this_machine(config, place, engine, SCHEDULER, DEFAULT_CLASSES).values["plan"]
        for config in (held, dataclasses.replace(held, link_gbps=0.01), dataclasses.replace(held, emulate="a10"))
    )
    assert fast["streamed_layers"] > 0
    assert fast["predicted_step_s"] < slow["predicted_step_s"]
    assert fast["predicted_step_s"] < emulated["predicted_step_s"]


def test_a_built_in_shape_has_no_record() -> None:
    with pytest.raises(PlanError, match="add --gpu ID"):
        plan_for_this_machine(PlanConfig(), ModelPlace("opt-13b", None), ENGINE, SCHEDULER, DEFAULT_CLASSES)


def test_a_need_beyond_what_a_class_bears_says_that_it_streams_fewer_while_that_runs() -> None:
    report = on_gpu("llama-3-8b", "a10", device_memory_bytes=16 * 10**9, num_sequences=4, kv_need_tokens=8192)
    assert "streamed at start, fewer while there are requests of interactive, standard." in report.verdict


def test_the_kv_of_all_sequences_is_wanted_and_what_is_short_is_said() -> None:
    report = on_gpu("llama-3-8b", "a10", device_memory_bytes=17 * 10**9, num_sequences=8, context_tokens=2048)
    assert report.values["request"]["kv_need_tokens"] == 8 * 2048
    assert report.values["plan"]["kv_tokens"] >= 8 * 2048 * 1.1
    short = on_gpu("llama-2-13b", "a10", num_sequences=64, context_tokens=2048, prompt_tokens=4000)
    plan = short.values["plan"]
    assert plan["kv_tokens"] < 64 * 2048
    assert short.notes[0].startswith(f"The KV at start holds {plan['kv_tokens']:,} of the 131,072 tokens asked for")
    assert short.notes[1] == f"A prompt of 4,000 tokens is longer than max_model_len, {plan['max_model_len']:,}."


@pytest.mark.parametrize("option", ["context", "prompt"])
def test_a_load_longer_than_the_model_reads_is_refused(option: str) -> None:
    with pytest.raises(PlanError, match=rf"--{option} is 8,193, llama-3-8b reads at most 8,192 tokens"):
        on_gpu("llama-3-8b", "a10", **{f"{option}_tokens": 8193})
