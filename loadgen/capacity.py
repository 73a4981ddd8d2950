"""`headrace capacity`: the highest rate at which a server keeps its objectives, from the options to the exit code."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path

import httpx
from rich.console import Console

from loadgen.bench import EXIT_INTERRUPTED, EXIT_INVALID, EXIT_NOT_RUN, EXIT_VALID, run_bench
from loadgen.capacity_config import CapacityConfig
from loadgen.capacity_report import CapacityReport, encode_capacity_json, print_capacity, probe_line
from loadgen.class_mix import NO_CLASS, ClassMix, parse_class_mix
from loadgen.client import make_http_client
from loadgen.config import BenchConfig, BenchError
from loadgen.metrics import Outcome
from loadgen.objectives import Question, parse_question
from loadgen.offered_load import OfferedLoad, ReplayedRows
from loadgen.probe import ClassCount, Grader, Look, Probe
from loadgen.report_file import STDOUT, check_report_paths, write_report
from loadgen.result import BenchResult
from loadgen.search import Search, SearchLimits
from loadgen.server_probe import ServerInfo, probe_server
from loadgen.traces.importer import load_trace
from loadgen.traces.trace_error import TraceError
from loadgen.transport import CLIENT_LIMIT


def main_capacity(config: BenchConfig, options: CapacityConfig) -> int:
    """Search, print every probe, write the JSON, and return the exit code.

    0: the search ended (also where no rate passes); 1: invalid probes ended it, as where this client is too slow; 2: it
    could not run; 130: interrupted. Ctrl-C and a server that goes away end the search; what was probed is still
    reported.
    """
    errors = Console(stderr=True)
    run = CapacityRun(config, options, errors)
    code = EXIT_VALID
    try:
        check_report_paths({"--json": config.json_path}, {"--trace": config.trace_path})
        asyncio.run(run.run())
    except BenchError as error:
        errors.print(f"headrace capacity: {error}", style="bold red", highlight=False, markup=False, soft_wrap=True)
        code = EXIT_NOT_RUN
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    report = run.report
    if report is None:
        return code
    print_capacity(report, errors if config.json_path == STDOUT else Console())
    try:
        write_report(config.json_path, encode_capacity_json(report))
    except BenchError as error:
        errors.print(f"headrace capacity: {error}", style="bold red", highlight=False, markup=False, soft_wrap=True)
        return EXIT_NOT_RUN
    if code == EXIT_VALID and report.result.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_INVALID if code == EXIT_VALID and report.result.is_cut_short else code


class CapacityRun:
    """One search against one server. After `run`, also where that raised, `report` holds what is known."""

    def __init__(self, config: BenchConfig, options: CapacityConfig, console: Console) -> None:
        self._config = config
        self._options = options
        self._console = console
        self._search: Search | None = None
        self._grader: Grader | None = None
        self._load: OfferedLoad | None = None
        self._question: Question | None = None
        self._num_runs = itertools.count(1)

    async def run(self) -> None:
        """Search until the capacity is found, a limit is reached, or Ctrl-C.

        Raises:
            BenchError: an option is wrong, or the server is out of reach.
        """
        config, options = self._config, self._options
        question = self._question = parse_question(options)
        mix, rows = _mix(config)
        load = self._load = OfferedLoad(config, options, mix, question.varied, rows)
        server = await _ask(config)
        server.check_classes(mix.asked_names)
        max_looks = options.prolong if load.can_prolong else 1
        grader = self._grader = Grader(
            question.resolve(mix.names, _served_objectives(mix, server)), options.confidence, max_looks
        )
        limits = SearchLimits(
            start_rate_per_s=load.start_rate_per_s,
            min_rate_per_s=load.start_rate_per_s / 100.0 if options.min_rate is None else options.min_rate,
            max_rate_per_s=options.max_rate,
            resolution=options.resolution,
            max_looks=max_looks,
            max_probes=options.max_probes,
            checks_above=options.check_above,
        )
        self._search = Search(limits, grader, self._measure, self._show)
        await self._search.run()

    @property
    def report(self) -> CapacityReport | None:
        """None: nothing was probed."""
        if self._search is None or self._grader is None or self._load is None or self._question is None:
            return None
        return CapacityReport(
            self._config,
            self._options,
            self._question.varied,
            self._grader.objectives,
            self._search.result,
            self._load.class_rates,
        )

    async def _measure(self, rate_per_s: float, look: int) -> Look:
        assert self._load is not None and self._grader is not None
        judged = self._grader.objectives
        config = self._load.at(rate_per_s, look, next(self._num_runs), judged)
        return read_look(await run_bench(config, self._console), judged)

    def _show(self, probe: Probe) -> None:
        assert self._grader is not None
        text = probe_line(probe, self._grader.objectives, self._options.confidence)
        self._console.print(text, highlight=False, soft_wrap=True)


def read_look(result: BenchResult, judged: Mapping[str, float]) -> Look:
    """What a search needs of a load test.

    Raises:
        BenchError: a judged class has requests for which no target is known, or none at all.
    """
    counts = {}
    for summary in result.classes:
        num_judged = summary.num_sent - summary.outcomes[Outcome.CANCELLED]
        counts[summary.name] = ClassCount(summary.outcomes[Outcome.MET], num_judged)
        is_judged = summary.name in judged and not result.run.interrupted
        if is_judged and summary.outcomes[Outcome.UNJUDGED]:
            raise BenchError(
                f"class {summary.name!r} cannot be judged: the server tells no targets for it; give them with "
                f"--slo {summary.name}:ttft_ms=...,tpot_ms=..."
            )
        if is_judged and not num_judged and not result.invalid_reasons:
            raise BenchError(f"class {summary.name!r} has no request in a probe: raise --requests, or its share")
    lag = result.overall.send_lag
    return Look(
        counts=counts,
        seed=result.config.seed,
        duration_s=result.run.ended_s - result.run.started_s,
        goodput_per_s=result.overall.goodput_per_s,
        send_lag_p99_s=None if lag is None else lag.p99_s,
        invalid_reasons=result.invalid_reasons,
        is_client_limit=_is_client_limit(result),
        interrupted=result.run.interrupted,
    )


def _is_client_limit(result: BenchResult) -> bool:
    lag = result.overall.send_lag
    is_late = lag is not None and lag.p99_s > result.max_send_lag_s
    return is_late or any(trace.error_code == CLIENT_LIMIT for trace, _ in result.counted)


def _mix(config: BenchConfig) -> tuple[ClassMix, ReplayedRows | None]:
    """The classes that are sent, and what is replayed; None: there is no trace."""
    mix = parse_class_mix(config)
    if config.trace_path is None:
        return mix, None
    try:
        rows = load_trace(Path(config.trace_path)).requests
    except TraceError as error:
        raise BenchError(f"--trace {config.trace_path}: {error}") from error
    span_s = rows[-1].t_s - rows[0].t_s
    replayed = ReplayedRows(len(rows), (len(rows) - 1) / span_s if span_s > 0.0 else None)
    return mix.with_labels(row.slo_class for row in rows), replayed


async def _ask(config: BenchConfig) -> ServerInfo:
    try:
        http = make_http_client(config, httpx.create_ssl_context())
    except (httpx.InvalidURL, ValueError) as error:
        raise BenchError(f"{config.url!r} is no URL: {error}") from error
    async with http:
        return await probe_server(config, http)


def _served_objectives(mix: ClassMix, server: ServerInfo) -> dict[str, float]:
    """By the names of the mix: requests that name no class are of the server's default one."""
    served = dict(server.objectives) if mix.names_class else {}
    default = server.objectives.get(server.default_class or "")
    if default is not None and NO_CLASS in mix.names and NO_CLASS not in mix.asked_names:
        served[NO_CLASS] = default
    return served
