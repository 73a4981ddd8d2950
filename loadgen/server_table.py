"""The server's counts beside the client's, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from loadgen.metrics import Outcome
from loadgen.server_view import ClassView, ServerView


def server_lines(view: ServerView | None) -> list[RenderableType]:
    """A table of the classes whose counts differ, and why; one line where none does. None: nothing was read."""
    if view is None:
        return []
    if view.problem is not None:
        return [Text(f"no counts of the server's: {view.problem}", style="dim")]
    lines: list[RenderableType] = []
    differing = [each for each in view.classes if each.notes]
    if differing:
        lines.append(_table(differing))
        lines += [Text(f"{each.name}: {note}") for each in differing for note in each.notes]
    elif view.classes:
        lines.append(Text("the server counts the same requests and outcomes in every class"))
    totals = [f"{total.name} {total.client:,} here, {total.server:,} there" for total in view.totals]
    if totals:
        lines.append(Text(f"{view.server} and this client: {'; '.join(totals)}"))
    return [*lines, *(Text(note, style="dim") for note in view.notes)]


def _table(classes: list[ClassView]) -> Table:
    outcomes = [
        outcome.value
        for outcome in Outcome
        if any(side.get(outcome.value) for each in classes for side in (each.client_outcomes, each.server_outcomes))
    ]
    table = Table(title="whole run, counted by this client and by the server", title_justify="left")
    for title in ("class", "by"):
        table.add_column(title, no_wrap=True)
    for title in ("sent", *(outcome.replace("_", " ") for outcome in outcomes)):
        table.add_column(title, justify="right")
    for each in classes:
        table.add_row(each.name, "client", str(each.client_sent), *_counts(each.client_outcomes, outcomes))
        table.add_row("", "server", str(each.server_offered), *_counts(each.server_outcomes, outcomes))
    return table


def _counts(counts: Mapping[str, int], outcomes: list[str]) -> list[str]:
    return [str(counts.get(outcome, 0)) for outcome in outcomes]
