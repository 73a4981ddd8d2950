"""docs/api-cases.md and docs/invariants.md name tests that exist; the first has every case that is served."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATER = {32, 34, 36, 37, 38}
"""Tools and structured output."""


def test_every_test_that_the_table_names_exists() -> None:
    table = (ROOT / "docs" / "api-cases.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", table))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 50
    assert not named - defined


def test_every_test_that_the_invariants_name_exists() -> None:
    text = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+|Test\w+)`", text))
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?: *def |class )?(test_\w+|Test\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) > 100
    assert not named - defined


def test_every_case_is_in_the_table() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", (ROOT / "docs" / "api-cases.md").read_text(encoding="utf-8"), re.MULTILINE)
    cases = {int(number) for row in rows for number in row.split(",")}
    assert cases == set(range(1, 39)) - LATER
