"""`headrace plan`: what would be streamed, what that frees, and which classes would be served in time."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine.config import EngineConfig
from engine.plan_config import PlanConfig
from engine.plan_model import built_in_names
from engine.plan_report import PlanReport, ReportTable
from engine.plan_run import ModelPlace, PlanError, plan_for_gpu, plan_for_this_machine
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClass
from server.hub_snapshot import HubSnapshots
from server.known_model import DEFAULT_ALIAS, KNOWN_MODELS
from server.model_error import ModelError, ModelNotCachedError
from server.model_source import parse_hub_id, resolve_model

EXIT_INFEASIBLE = 3
_LEGEND = (
    "at start: predicted with what is streamed at start. floor: with the fewest layers streamed that this memory and "
    "--max-model-len allow. A class is open if its floor is within its targets; while it runs, no more layers are "
    "streamed than its column says. See docs/offload.md.",
)


def run_plan(
    config: PlanConfig,
    name: str,
    engine: EngineConfig,
    scheduler: SchedulerConfig,
    classes: Iterable[SLOClass],
    out: Console,
) -> int:
    """Plan, show, and write the JSON file if there is to be one. Returns the exit status.

    Raises:
        PlanError: the model or the machine is not known, or a file cannot be read or written.
    """
    place = find_model(name)
    make = plan_for_gpu if config.gpu is not None else plan_for_this_machine
    report = make(config, place, engine, scheduler, classes)
    show(report, out)
    if config.json_path is not None:
        _write(Path(config.json_path), report)
    return 0 if report.is_feasible else EXIT_INFEASIBLE


def find_model(name: str, hub: HubSnapshots | None = None) -> ModelPlace:
    """A path, an alias whose file is here, a hub id - of which config.json is fetched if need be - or a built-in shape.

    Raises:
        PlanError: nothing of that name.
    """
    is_built_in = name.lower() in built_in_names()
    asked = None if name == DEFAULT_ALIAS else name
    local = Path(name).expanduser()
    if local.is_dir() and (local / "config.json").is_file():
        return ModelPlace(local.resolve().name, local, asked)
    if is_built_in and name not in KNOWN_MODELS and not local.exists():
        return ModelPlace(name.lower(), None)
    try:
        paths = resolve_model(name)
    except ModelNotCachedError as error:
        hub_id = parse_hub_id(name)
        if hub_id is not None and hub_id.file_name is None:
            return _from_hub(name, hub or HubSnapshots())
        if is_built_in:
            return ModelPlace(name.lower(), None)
        raise PlanError(str(error)) from error
    except ModelError as error:
        close = difflib.get_close_matches(name.lower(), built_in_names(), n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        raise PlanError(f"{error} Built-in shapes: {', '.join(built_in_names())}.{guess}") from error
    return ModelPlace(paths.served_id, paths.path, asked)


def _from_hub(name: str, hub: HubSnapshots) -> ModelPlace:
    hub_id = parse_hub_id(name)
    assert hub_id is not None
    try:
        return ModelPlace(hub_id.repo, hub.fetch_config(hub_id), name)
    except ModelError as error:
        raise PlanError(f"{error} Or plan with a built-in shape: {', '.join(built_in_names())}.") from error


def show(report: PlanReport, out: Console) -> None:
    """Write the plan for people."""

    def line(text: str, style: str = "") -> None:
        out.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    for text in report.heading:
        line(text)
    out.print()
    line(report.verdict, "bold")
    for table in report.tables:
        out.print()
        out.print(_table(table))
    out.print()
    for text in report.notes:
        line(text)
    if report.is_feasible:
        out.print()
        for text in _LEGEND:
            line(text)


def _table(table: ReportTable) -> Table:
    shown = Table(
        title=table.title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_header=any(table.columns),
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for index, column in enumerate(table.columns):
        is_text = index == 0 or not any(table.columns)
        shown.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=index < 2)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _write(path: Path, report: PlanReport) -> None:
    try:
        path.write_text(json.dumps(report.values, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise PlanError(f"--json {path}: {error.strerror}") from error
