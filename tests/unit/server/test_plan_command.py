"""`headrace plan` as it is typed: output, status, JSON, and what is said where a name is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.plan_run import PlanError
from server.cli import app
from server.hub_snapshot import HubSnapshots
from server.plan_command import find_model
from tests.fake_hub import fake_hub
from tests.tiny_model import make_tiny_llama


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


def test_a_plan_is_shown_and_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    result = run("--model", "llama-3-8b", "--gpu", "a10", "--device-memory", "14GB", "--json", str(path))
    assert result.exit_code == 0, result.output
    for text in (
        "NVIDIA A10",
        "Latency classes",
        "closed: realtime, interactive",
        "resident layers",
        "docs/offload.md",
    ):
        assert text in result.output
    values = json.loads(path.read_text())
    assert values["plan"]["feasible"] is True
    assert values["model"]["name"] == "llama-3-8b"
    assert f"{values['plan']['streamed_layers']} of 32 at start" in result.output


def test_where_no_class_is_served_the_status_is_three_and_options_are_named(tmp_path: Path) -> None:
    classes = tmp_path / "classes.toml"
    classes.write_text(
        'default_class = "quick"\n[classes.quick]\nttft_base_s = 1.0\ntpot_s = 0.03\nwhen_infeasible = "refuse"\n'
    )
    result = run("llama-3-70b", "--gpu", "h100", "--classes", str(classes), "--json", str(tmp_path / "plan.json"))
    assert result.exit_code == 3, result.output
    assert "Infeasible." in result.output and "a looser target: TPOT of at least" in result.output
    assert json.loads((tmp_path / "plan.json").read_text())["plan"]["options"]


@pytest.mark.parametrize(
    ("arguments", "status", "texts"),
    [
        (("llama-3-8b", "--gpu", "b200"), 2, ("b200", "rtx-4090", "gh200")),
        (("opt-14b", "--gpu", "a10"), 1, ("opt-14b", "opt-175b", "Did you mean opt-13b?")),
        (("opt-13b",), 1, ("built-in shape", "--gpu ID")),
        (("llama-3-8b", "--gpu", "a10", "--batch", "0"), 2, ("--batch", "1")),
        (("llama-3-8b", "--gpu", "a10", "--emulate", "t4"), 2, ("emulation is of this machine",)),
        (("llama-3-8b", "--model", "opt-13b", "--gpu", "a10"), 2, ("give one",)),
        (("llama-3-8b", "--gpu", "a10", "--classes", "missing.toml"), 2, ("missing.toml",)),
        (("llama-3-8b", "--gpu", "a10", "--json", "/nowhere/at/all.json"), 1, ("--json /nowhere/at/all.json",)),
    ],
)
def test_wrong_input_is_named_with_what_is_right(
    arguments: tuple[str, ...], status: int, texts: tuple[str, ...]
) -> None:
    result = run(*arguments)
    assert result.exit_code == status, result.output
    for text in texts:
        assert text in result.output


def test_a_directory_is_planned_from_its_config_alone(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "tiny")
    (directory / "model.safetensors").unlink()
    result = run(str(directory), "--gpu", "t4")
    assert result.exit_code == 0, result.output
    assert "tiny: " in result.output and "2 layers" in result.output


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub client's cache for this test alone."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.mark.usefixtures("hub_cache")
def test_of_a_model_of_the_hub_only_the_config_is_fetched(tmp_path: Path) -> None:
    config = make_tiny_llama(tmp_path / "tiny").joinpath("config.json").read_bytes()
    with fake_hub("someone/large", {"config.json": config, "model.safetensors": b"never"}) as hub:
        place = find_model("someone/large", HubSnapshots(hub.url))
        assert hub.downloads == ["config.json"]
    assert place.name == "someone/large"
    assert place.path is not None and (place.path / "config.json").read_bytes() == config


@pytest.mark.usefixtures("hub_cache")
def test_a_hub_out_of_reach_is_said_with_what_else_there_is() -> None:
    with fake_hub("someone/large", {}) as hub, pytest.raises(PlanError, match=r"built-in shape: .*llama-3-8b"):
        find_model("nobody/here", HubSnapshots(hub.url))
