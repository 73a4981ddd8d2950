"""The help of the verbs, as a terminal of 80 columns shows it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from server.cli import BENCH_OPTIONS, SERVE_OPTIONS, app
from server.option import Option


@pytest.mark.parametrize(("verb", "options"), [("serve", SERVE_OPTIONS), ("bench", BENCH_OPTIONS)])
def test_help_of_80_columns_shows_every_option_by_its_full_name(verb: str, options: tuple[Option, ...]) -> None:
    lines = CliRunner().invoke(app, [verb, "--help"], terminal_width=80).output.splitlines()
    assert max(map(len, lines)) <= 80
    first_words = {line.split()[0] for line in lines if line.startswith("  --")}
    assert {f"--{option.name}" for option in options} <= first_words


def test_help_has_a_section_for_each_folder_that_has_options() -> None:
    lines = CliRunner().invoke(app, ["serve", "--help"], terminal_width=80).output.splitlines()
    assert [line for line in lines if line in ("Arguments:", "Server:", "Engine:", "Scheduler:")] == [
        *("Arguments:", "Server:", "Engine:", "Scheduler:")
    ]


def test_help_shows_brackets_as_they_are() -> None:
    assert "NAME:SHARE[,prompt=TOKENS][,output=TOKENS]" in CliRunner().invoke(app, ["bench", "--help"]).output
