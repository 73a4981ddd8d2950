"""`headrace bench`: one load test from its options to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from loadgen.class_mix import ClassMix, parse_class_mix
from loadgen.client import LoadClient, make_http_client
from loadgen.config import BenchConfig, BenchError
from loadgen.report import encode_json, print_report
from loadgen.result import BenchResult, make_result
from loadgen.runner import Runner, RunResult
from loadgen.server_probe import ServerInfo, probe_server
from loadgen.targets import ClassTargets, TargetBook, parse_overrides
from loadgen.workload import Workload

EXIT_VALID = 0
EXIT_INVALID = 1
"""The run's numbers must not be believed."""
EXIT_NOT_RUN = 2
"""The server is out of reach, or an option is wrong."""
EXIT_INTERRUPTED = 130
STDOUT = "-"


def main_bench(config: BenchConfig) -> int:
    """Run the load test, print its table, write its JSON, and return the exit code.

    Ctrl-C stops the sending, cuts off what is open, and still reports.
    """
    errors = Console(stderr=True)
    try:
        _check_json_path(config)
        result = asyncio.run(run_bench(config, errors))
        print_report(result, errors if config.json_path == STDOUT else Console())
        _write_json(result)
    except BenchError as error:
        errors.print(f"headrace bench: {error}", style="bold red", highlight=False, markup=False, soft_wrap=True)
        return EXIT_NOT_RUN
    if result.run.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_VALID if result.is_valid else EXIT_INVALID


async def run_bench(config: BenchConfig, progress_console: Console) -> BenchResult:
    """The load test without its output.

    Raises:
        BenchError: an option is wrong, or the server is out of reach.
    """
    mix = parse_class_mix(config)
    overrides = parse_overrides(config.slo, mix.names)
    try:
        http = make_http_client(config)
    except (httpx.InvalidURL, ValueError) as error:
        raise BenchError(f"{config.url!r} is no URL: {error}") from error
    async with http:
        server = await probe_server(config, http)
        if mix.names_class:
            server.check_classes(mix.names)
        run = await _run(config, mix, LoadClient(config, http, server, names_class=mix.names_class), progress_console)
    book = TargetBook(overrides, _served_targets(mix, server))
    return make_result(config, mix, server, book, run)


def _served_targets(mix: ClassMix, server: ServerInfo) -> dict[str, ClassTargets]:
    """The server's targets under the names of the mix: requests that name no class are of the server's default one."""
    if mix.names_class:
        return dict(server.classes)
    default = server.classes.get(server.default_class or "")
    return {} if default is None else dict.fromkeys(mix.names, default)


async def _run(config: BenchConfig, mix: ClassMix, client: LoadClient, console: Console) -> RunResult:
    with _progress(config, console) as (progress, task):
        runner = Runner(config, client, on_finish=lambda: progress.advance(task))
        with _interrupt_on_sigint(runner):
            return await runner.run(Workload(config, mix).requests())


@contextlib.contextmanager
def _progress(config: BenchConfig, console: Console) -> Iterator[tuple[Progress, TaskID]]:
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = config.progress and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown, refresh_per_second=4) as progress:
        yield progress, progress.add_task("requests", total=config.max_requests)


@contextlib.contextmanager
def _interrupt_on_sigint(runner: Runner) -> Iterator[None]:
    """The first Ctrl-C ends the run; a second one ends the program."""
    loop = asyncio.get_running_loop()

    def on_sigint() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        runner.interrupt()

    try:
        loop.add_signal_handler(signal.SIGINT, on_sigint)
    except (NotImplementedError, RuntimeError, ValueError):  # no such signals here, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _check_json_path(config: BenchConfig) -> None:
    """Before the run, so that no result is lost to a wrong path."""
    if config.json_path not in (None, STDOUT) and not Path(config.json_path).resolve().parent.is_dir():
        raise BenchError(f"cannot write the result to {config.json_path}: there is no such directory")


def _write_json(result: BenchResult) -> None:
    path = result.config.json_path
    if path is None:
        return
    if path == STDOUT:
        sys.stdout.write(encode_json(result) + "\n")
        sys.stdout.flush()
        return
    try:
        Path(path).write_text(encode_json(result) + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchError(f"cannot write the result to {path}: {error.strerror}") from error
