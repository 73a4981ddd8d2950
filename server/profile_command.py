"""`headrace profile`: measure this machine with a model, keep the record, show what it says."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn
from rich.table import Table

from engine.config import EngineConfig
from engine.profile_report import HeldOutRow, LayerRow, LinkRow, ProfileReport, SlowdownRow, make_report
from engine.profile_run import obtain_record
from scheduler.config import SchedulerConfig
from server.profile_config import ProfileConfig

_EXPECTED_ERROR = 0.10
"""A held-out error above that at the 95th percentile is pointed at: something else was running."""


class CopyError(Exception):
    """The record is there, but its copy could not be written."""


def run_profile(
    config: ProfileConfig, engine: EngineConfig, scheduler: SchedulerConfig, console: Console, out: Console
) -> None:
    """Measure, store and show.

    Args:
        console: of the progress bar.
        out: of the tables.

    Raises:
        ProfileError: the record cannot be made.
        CopyError: see there.
    """
    with _progress_bar(console) as report:
        result = obtain_record(engine, scheduler, report, is_forced=not config.reuse)
    show(make_report(result.record), out)
    how = "" if result.is_fresh else " (from the cache)"
    out.print(f"Record: {result.path}{how}", highlight=False, soft_wrap=True)
    if config.json_path is not None:
        _copy(result.path, Path(config.json_path))


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise CopyError(f"--json {target}: {error.strerror}; the record itself is at {source}") from error


@contextlib.contextmanager
def _progress_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    columns = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("loading kernels", total=1.0)
        yield lambda phase, fraction: progress.update(task, description=phase, completed=fraction)


def show(report: ProfileReport, out: Console) -> None:
    """Write the tables and what they sum up to."""
    out.print(_layer_table(report.layers))
    out.print()
    out.print(_link_table(report.link))
    out.print()
    out.print(_slowdown_table(report.slowdowns))
    out.print()
    for line in (
        f"Head and sampling: {_ms(report.head_one_s)} for 1 row, {_ms(report.head_all_s)} for {report.head_rows}. "
        f"Besides: {_ms(report.fixed_s)} a step. A load that waited starts {_ms(report.restart_s)} late.",
        _error_line(report.held_out),
        f"Measured in {report.wall_s:.1f} s; {report.num_dropped} of {report.num_samples} repetitions were disturbed "
        "and left out.",
    ):
        out.print(line, highlight=False, soft_wrap=True)


def _error_line(held_out: HeldOutRow) -> str:
    if not held_out.num_points:
        return "No step lies between those measured: the error of the fit is not known."
    line = (
        f"Held out (*): {held_out.num_points} steps that the fit has not seen are predicted with an error of "
        f"{held_out.median:.1%} in the median and {held_out.p95:.1%} at the 95th percentile."
    )
    if held_out.p95 > _EXPECTED_ERROR:
        line += " That is much: let nothing else compute meanwhile, and measure again."
    return line


def _layer_table(rows: tuple[LayerRow, ...]) -> Table:
    table = _table("layer of", "seqs", "tokens", "context", "p50 us", "p95 us", "fit us", "error")
    for row in rows:
        table.add_row(
            "decode" if row.is_decode else "prefill",
            str(row.num_sequences),
            str(row.num_tokens),
            str(row.context_each),
            _us(row.p50_s),
            _us(row.p95_s),
            _us(row.fitted_s),
            f"{row.fitted_s / row.p50_s - 1.0:+.1%}{'*' if row.is_held_out else ' '}",
        )
    return table


def _link_table(rows: tuple[LinkRow, ...]) -> Table:
    table = _table("copy", "direction", "GB/s p50", "p5", "both ways at once")
    for row in rows:
        table.add_row(
            _size(row.num_bytes),
            row.direction,
            _gbps(row.p50_bytes_per_s),
            _gbps(row.p5_bytes_per_s),
            _gbps(row.together_bytes_per_s),
        )
    return table


def _slowdown_table(rows: tuple[SlowdownRow, ...]) -> Table:
    table = _table("while the link copies", "at GB/s", "step", "tokens", "layer takes")
    for row in rows:
        table.add_row(
            "as fast as it can" if row.cap_bytes_per_s is None else f"{_gbps(row.cap_bytes_per_s)} GB/s at most",
            _gbps(row.copied_bytes_per_s),
            "decode" if row.is_decode else "prefill",
            str(row.num_tokens),
            f"{row.slowdown:.3f} x",
        )
    return table


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _gbps(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:,.2f}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes // 2**20} MiB" if num_bytes >= 2**20 else f"{num_bytes // 2**10} KiB"
