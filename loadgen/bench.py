"""`headrace bench`: one load test from its options to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
from rich.console import Console

from loadgen.calibration import Calibration, calibrate
from loadgen.class_mix import NO_CLASS, ClassMix, parse_class_mix
from loadgen.client import LoadClient, make_http_client, make_transport
from loadgen.conditions import gather_conditions
from loadgen.config import BenchConfig, BenchError
from loadgen.html_report import write_html
from loadgen.live_view import LiveView
from loadgen.metrics import judge
from loadgen.open_files import raise_open_files_limit
from loadgen.report import encode_json, print_report
from loadgen.report_file import STDOUT, check_report_paths, write_report
from loadgen.request_lines import RequestLines, open_request_lines
from loadgen.result import BenchResult, make_result
from loadgen.runner import Runner, RunResult
from loadgen.server_metrics import MetricsSnapshot, scrape, scrape_settled
from loadgen.server_probe import ServerInfo, probe_server
from loadgen.server_view import ServerView, compare_counts
from loadgen.targets import ClassTargets, TargetBook, parse_overrides
from loadgen.trace import RequestTrace
from loadgen.trace_workload import Replay, TraceWorkload
from loadgen.traces.importer import checksum_of, load_trace
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace
from loadgen.workload import PlannedRequest, Workload

EXIT_VALID = 0
EXIT_INVALID = 1
"""The run's numbers must not be believed."""
EXIT_NOT_RUN = 2
"""The server is out of reach, or an option is wrong."""
EXIT_INTERRUPTED = 130


def main_bench(config: BenchConfig) -> int:
    """Run the load test, print its table, write its JSON and its HTML, and return the exit code.

    Ctrl-C and SIGTERM stop the sending, cut off what is open, and still report. A report that cannot be written keeps
    none of the others from being written.
    """
    errors = Console(stderr=True)
    try:
        _check_paths(config)
        result = asyncio.run(run_bench(config, errors))
    except BenchError as error:
        _print_error(errors, error)
        return EXIT_NOT_RUN
    print_report(result, errors if config.json_path == STDOUT else Console())
    if not _write_reports(result, errors):
        return EXIT_NOT_RUN
    if result.run.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_VALID if result.is_valid else EXIT_INVALID


def _check_paths(config: BenchConfig) -> None:
    """Raises BenchError: a result would be lost, or come in no form that was asked for."""
    if config.json_format != "headrace" and config.json_path is None:
        raise BenchError(f"--format {config.json_format} is of the JSON, which goes nowhere: add --json PATH")
    check_report_paths(
        {"--json": config.json_path, "--html": config.html_path, "--requests-path": config.requests_path},
        {"--trace": config.trace_path},
    )


def _write_reports(result: BenchResult, errors: Console) -> bool:
    """Whether all could be written."""
    config, is_written = result.config, True
    try:
        write_report(config.json_path, encode_json(result))
    except BenchError as error:
        _print_error(errors, error)
        is_written = False
    try:
        if config.html_path is not None:
            write_html(result, config.html_path)
    except BenchError as error:
        _print_error(errors, error)
        is_written = False
    return is_written


def _print_error(errors: Console, error: BenchError) -> None:
    errors.print(f"headrace bench: {error}", style="bold red", highlight=False, markup=False, soft_wrap=True)


async def run_bench(config: BenchConfig, progress_console: Console) -> BenchResult:
    """The load test without its output. It may be called many times in one process, one after another.

    Raises:
        BenchError: an option is wrong, the server is out of reach, or the trace cannot be read.
    """
    raise_open_files_limit()
    trace = None if config.trace_path is None else _load_trace(config.trace_path)
    mix = parse_class_mix(config)
    if trace is not None:
        mix = mix.with_labels(row.slo_class for row in trace.requests)
    overrides = parse_overrides(config.slo, mix.names, mix.targets)
    tls = httpx.create_ssl_context()
    try:
        transport, http = make_transport(config, tls), make_http_client(config, tls)
    except (httpx.InvalidURL, ValueError) as error:
        raise BenchError(f"{config.url!r} is no URL: {error}") from error
    async with http, contextlib.aclosing(transport):
        server = await probe_server(config, http)
        server.check_classes(mix.asked_names)
        calibration = await calibrate(config, http, server.model)
        book = TargetBook(overrides, _served_targets(mix, server))
        client = LoadClient(config, transport, server, mix)
        requests, replay = _plan(config, mix, trace, calibration, server)
        conditions = gather_conditions(config)
        before = await scrape(http) if config.scrape else None
        run = await _run(config, mix, requests, client, book, progress_console)
        result = make_result(config, mix, server, book, run, replay, calibration)
        view = None if before is None else await _view(http, before, result)
    return dataclasses.replace(result, server_view=view, conditions=conditions)


def _plan(
    config: BenchConfig, mix: ClassMix, trace: Trace | None, calibration: Calibration, server: ServerInfo
) -> tuple[Iterator[PlannedRequest], Replay | None]:
    """What is sent, and what it is of a trace."""
    if trace is None:
        return Workload(config, mix, calibration).requests(), None
    max_model_len = server.max_model_len if config.max_model_len is None else config.max_model_len
    assert config.trace_path is not None
    load = TraceWorkload(config, mix, trace, calibration, max_model_len, checksum_of(Path(config.trace_path)))
    return load.requests(), load.replay


async def _view(http: httpx.AsyncClient, before: MetricsSnapshot, result: BenchResult) -> ServerView:
    after = await scrape_settled(http, before)
    return compare_counts(before, after, result.judged, result.server.default_class, result.book.own_names)


def _load_trace(path: str) -> Trace:
    try:
        return load_trace(Path(path))
    except TraceError as error:
        raise BenchError(f"--trace {path}: {error}") from error


def _served_targets(mix: ClassMix, server: ServerInfo) -> dict[str, ClassTargets]:
    """The server's targets under the names of the mix: requests that name no class are of the server's default one."""
    served = dict(server.classes) if mix.names_class else {}
    default = server.classes.get(server.default_class or "")
    if default is not None and NO_CLASS in mix.names and NO_CLASS not in mix.asked_names:
        served[NO_CLASS] = default
    return served


async def _run(
    config: BenchConfig,
    mix: ClassMix,
    requests: Iterator[PlannedRequest],
    client: LoadClient,
    book: TargetBook,
    console: Console,
) -> RunResult:
    clock = asyncio.get_running_loop().time
    live = LiveView(mix.names, console, clock, num_planned=config.max_requests, wanted=config.progress)
    with open_request_lines(config.requests_path) as lines, live:
        runner = Runner(config, client, _Watch(book, lines, live))
        with _interrupt_on_signals(runner):
            return await runner.run(requests)


class _Watch:
    """Passes on what happens in a run (`RunObserver`)."""

    def __init__(self, book: TargetBook, lines: RequestLines | None, live: LiveView) -> None:
        self._book = book
        self._lines = lines
        self._live = live
        self._started_s = 0.0

    def started(self, started_s: float) -> None:
        self._started_s = started_s
        self._live.started(started_s)

    def sent(self, planned: PlannedRequest, lag_s: float) -> None:
        self._live.sent(planned, lag_s)

    def finished(self, trace: RequestTrace) -> None:
        if self._lines is None and not self._live.is_shown:
            return
        outcome = judge(trace, self._book)
        self._live.finished(trace, outcome)
        if self._lines is not None:
            self._lines.write(trace, outcome, self._started_s)


@contextlib.contextmanager
def _interrupt_on_signals(runner: Runner) -> Iterator[None]:
    """The first Ctrl-C ends the run; a second one ends the program. SIGTERM ends the run however often it comes:
    `timeout` of coreutils sends it twice, to the process and to its group."""
    loop = asyncio.get_running_loop()

    def on_sigint() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        runner.interrupt()

    try:
        loop.add_signal_handler(signal.SIGINT, on_sigint)
        loop.add_signal_handler(signal.SIGTERM, runner.interrupt)
    except (NotImplementedError, RuntimeError, ValueError):  # no such signals here, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
