"""The command line, and the composition root: the one module that may import every folder, each verb only its own."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from engine.config import EngineConfig
from engine.plan_config import PlanConfig
from engine.simulation.config import SimulateConfig
from loadgen.capacity_config import CapacityConfig
from loadgen.config import BenchConfig
from loadgen.traces.command_line import trace_app
from offload.config import OffloadConfig
from scheduler.config import SchedulerConfig
from server.command_line import SectionedCommand, Typed, command_of
from server.config import ServerConfig
from server.known_model import DEFAULT_ALIAS
from server.option import options_of
from server.profile_config import ProfileConfig

if TYPE_CHECKING:
    from rich.console import Console

    from engine.simulation.replayed_load import ReplayedLoad
    from server.model_source import ModelPaths

logger = logging.getLogger(__name__)
EXIT_USAGE = 2
_LOG_COLUMNS = 120

SERVE_OPTIONS = options_of(ServerConfig, EngineConfig, OffloadConfig, SchedulerConfig, without={"model_path"})
BENCH_OPTIONS = options_of(BenchConfig, without={"url"})
_CAPACITY_HELPS = {
    "rate": "Rate of the first probe, requests per second; default: 1, or with a trace the trace's own.",
    "requests": "Requests of each judged class that a run has on average, if not more; default: 200. With a trace: "
    "its rows that are sent; default: all.",
    "duration_s": "Seconds that the counted part of a run takes at least; default: 30. A trace takes its own time.",
    "seed": "Of the first run of each probe; a prolonged one takes the next ones.",
}
CAPACITY_OPTIONS = tuple(
    dataclasses.replace(option, help=_CAPACITY_HELPS.get(option.field, option.help))
    for option in options_of(
        CapacityConfig,
        BenchConfig,
        without={
            *("url", "concurrency", "warm_up_s", "cool_down_s", "scrape", "save_requests"),
            *("json_format", "html_path", "requests_path"),
        },
    )
)
_PROFILE_FIELDS = {
    *("json_path", "reuse"),
    *("dtype", "quantize", "kv_cache_memory_bytes", "max_model_len_tokens", "threads", "kernels", "batch_invariant"),
    *("max_num_batched_tokens", "max_num_seqs", "block_size"),
}
PROFILE_OPTIONS = tuple(
    option
    for option in options_of(ProfileConfig, EngineConfig, SchedulerConfig, without={"model_path"})
    if option.field in _PROFILE_FIELDS
)
_PLAN_FIELDS = {
    *(field.name for field in dataclasses.fields(PlanConfig)),
    *("dtype", "quantize", "kv_cache_memory_bytes", "max_model_len_tokens", "threads", "kernels", "batch_invariant"),
    *("max_num_batched_tokens", "max_num_seqs", "block_size"),
}
PLAN_OPTIONS = tuple(
    option
    for option in options_of(PlanConfig, EngineConfig, SchedulerConfig, without={"model_path"})
    if option.field in _PLAN_FIELDS
)
_SIMULATE_FIELDS = {
    *(field.name for field in dataclasses.fields(SimulateConfig)),
    *("dtype", "quantize", "kv_cache_memory_bytes", "max_model_len_tokens", "threads", "kernels", "batch_invariant"),
    *(field.name for field in dataclasses.fields(SchedulerConfig)),
} - {"enable_prefix_caching"}  # no two simulated requests share a prefix
SIMULATE_OPTIONS = tuple(
    dataclasses.replace(option, name="policy", alias="scheduler-policy")
    if option.field == "scheduler_policy"
    else option
    for option in options_of(SimulateConfig, EngineConfig, SchedulerConfig, without={"model_path"})
    if option.field in _SIMULATE_FIELDS
)
_MODEL_HELP = f"Directory, GGUF file, hub id or alias; default: {DEFAULT_ALIAS}."
_SERVE_HELP = (
    "Serve a model over the OpenAI API. Every option is also a variable (--port is HEADRACE_PORT) and a key of the "
    "--config file; the command line wins over the variable, the variable over the file."
)

_BENCH_HELP = (
    "Load a server and show, by latency class, how many requests met their targets. Times are measured from the "
    "moment a request should have been sent. The key may also be in HEADRACE_API_KEY."
)
_CAPACITY_HELP = (
    "Find the highest rate at which a server keeps its objectives: doubling, then bisection; every probe sends the "
    "same plan with its time scaled. With --frontier: the most load of one class beside another that keeps its "
    "objective."
)
_PROFILE_HELP = (
    "Measure this machine with a model: layers, head, link, and what copying costs beside computing. The record is "
    "kept in the cache, for `plan` and `serve`; it holds for the options given here. Let nothing "
    "else compute meanwhile."
)
_PLAN_HELP = (
    "Say before anything is started how much of a model would be streamed, what memory that frees, and which latency "
    "classes would be served in time: for this machine by the record of `profile`, or with --gpu for an accelerator of "
    "the built-in table. The status is 0 with a plan, 3 where none serves any class."
)
_PLAN_MODEL_HELP = f"{_MODEL_HELP[:-1]}. With --gpu also a built-in shape, such as llama-3-8b or opt-6.7b."
_SIMULATE_HELP = (
    "Say who would be served in time under a load: the scheduler of `serve`, with all weights on the device, on a "
    "virtual clock. Steps take what the record of `profile` says for this machine, or with --gpu what an accelerator "
    "of the built-in table would take. The same seed gives the same result."
)

app = typer.Typer(
    name="headrace",
    help="An OpenAI-compatible LLM server in which every request has a latency target, by class.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(trace_app, name="trace", short_help="Recorded load: import, describe, merge, thin, scale, cut, validate.")


def main() -> None:
    """Entry point of the console script `headrace` and of `python -m server`."""
    app()


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(f"headrace: {message}", err=True)
    raise typer.Exit(code)


def _console() -> Console:
    """Standard error; lines of a log file are wider than rich's guess."""
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else Console(stderr=True, width=_LOG_COLUMNS)


def _show_version(wanted: bool) -> None:
    if wanted:
        from server.version import headrace_version

        typer.echo(f"headrace {headrace_version()}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    del version


@app.command("pull", short_help="Fetch a model into the cache and verify it.")
def pull_command(
    model: Annotated[str, typer.Argument(help=_MODEL_HELP, metavar="MODEL", show_default=False)] = DEFAULT_ALIAS,
) -> None:
    """Fetch a model into the cache ($HEADRACE_CACHE, else ~/.cache/headrace) and verify it."""
    from server.model_error import ModelError
    from server.model_source import pull
    from server.pull_progress import pull_progress

    try:
        with pull_progress(model, _console()) as events:
            paths = pull(model, events=events)
    except ModelError as error:
        _fail(str(error))
    typer.echo(str(paths.path))


@app.command("replay", short_help="Run a recording of --event-log again; compare every decision.")
def replay_command(
    path: Annotated[Path, typer.Argument(help="What `serve --event-log PATH` has written.", metavar="PATH")],
) -> None:
    """Run the scheduler again from a recording and compare every decision bit by bit. Status 1: one differs."""
    from engine.errors import EventLogError
    from engine.replay import replay

    try:
        report = replay(path)
    except EventLogError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{path}: {error.strerror}; name a file that `headrace serve --event-log` has written")
    typer.echo(
        f"identical: {report.num_steps} steps, {report.num_tokens} tokens, engine processes: {report.num_processes}"
    )


def _serve(model: str | None, config_path: Path | None, typed: Typed) -> None:
    given = typed if model is None else {**typed, "model": model}
    from server.layout_check import ForeignPackageError, check_layout
    from server.listener import ListenError, listen
    from server.log_setup import set_up_logging
    from server.model_error import ModelError
    from server.record_files import RecordFileError, check_record_files
    from server.settings import SettingsError, load_settings, unknown_variables
    from server.slo_table import SLOTableError, load_slo_classes

    console = _console()
    try:
        settings = load_settings(SERVE_OPTIONS, given, os.environ, config_path or _config_variable())
        server = settings.build(ServerConfig)
        scheduler = settings.build(SchedulerConfig)
        offload = settings.build(OffloadConfig)
        engine = settings.build(EngineConfig, model_path=server.model)  # its place is known further below
        classes = load_slo_classes(server.classes_path, server.default_class)
        check_record_files(engine.event_log_path, server.request_log_path)
    except (SettingsError, SLOTableError, RecordFileError) as error:
        _fail(str(error), EXIT_USAGE)
    set_up_logging(server.log_level)
    for line in unknown_variables(SERVE_OPTIONS, os.environ):
        logger.warning(line)
    try:
        check_layout()
        listener = listen(server.host, server.port)
        paths = _resolve(server.model, console)
        engine = dataclasses.replace(engine, model_path=str(paths.path))
    except (ForeignPackageError, ListenError, ModelError) as error:
        _fail(str(error))

    # Here and not above: these take a second to import, and the errors above should not wait for that.
    from server.composition import ServeConfig
    from server.serve import ServeError, serve

    try:
        model_id = server.served_model_name or paths.served_id
        serve(ServeConfig(server, engine, scheduler, offload, classes, model_id), listener, console)
    except ServeError as error:
        _fail(str(error))


def _profile(model: str | None, config_path: Path | None, typed: Typed) -> None:
    from server.layout_check import ForeignPackageError, check_layout
    from server.log_setup import set_up_logging
    from server.model_error import ModelError
    from server.settings import SettingsError, load_settings

    console = _console()
    try:
        settings = load_settings(PROFILE_OPTIONS, typed, os.environ, config_path)
        config = settings.build(ProfileConfig)
        scheduler = settings.build(SchedulerConfig)
        engine = settings.build(EngineConfig, model_path="")  # its place is known further below
    except SettingsError as error:
        _fail(str(error), EXIT_USAGE)
    set_up_logging("WARNING")
    try:
        check_layout()
        paths = _resolve(model or DEFAULT_ALIAS, console)
    except (ForeignPackageError, ModelError) as error:
        _fail(str(error))

    # Here and not above: these take seconds to import, and the errors above should not wait for that.
    from rich.console import Console

    from engine.profile_run import ProfileError
    from server.profile_command import CopyError, run_profile

    out = Console()
    out = out if out.is_terminal else Console(width=_LOG_COLUMNS)
    try:
        run_profile(config, dataclasses.replace(engine, model_path=str(paths.path)), scheduler, console, out)
    except (ProfileError, CopyError) as error:
        _fail(str(error))


def _plan(model: str | None, config_path: Path | None, typed: Typed) -> None:
    from server.log_setup import set_up_logging
    from server.settings import SettingsError, load_settings
    from server.slo_table import SLOTableError, load_slo_classes

    try:
        settings = load_settings(PLAN_OPTIONS, typed, {}, config_path)
        config = settings.build(PlanConfig)
        scheduler = settings.build(SchedulerConfig)
        engine = settings.build(EngineConfig, model_path="")  # its place is known further below
        classes = load_slo_classes(config.classes_path, None)
    except (SettingsError, SLOTableError) as error:
        _fail(str(error), EXIT_USAGE)
    if None not in (model, config.model) and model != config.model:
        _fail(f"MODEL is {model!r} and --model {config.model!r}: give one", EXIT_USAGE)
    set_up_logging("WARNING")

    # Here and not above: these take seconds to import, and the errors above should not wait for that.
    from rich.console import Console

    from engine.plan_run import PlanError
    from server.plan_command import run_plan

    out = Console()
    out = out if out.is_terminal else Console(width=_LOG_COLUMNS)
    try:
        status = run_plan(config, model or config.model or DEFAULT_ALIAS, engine, scheduler, classes, out)
    except PlanError as error:
        _fail(str(error))
    raise typer.Exit(status)


def _simulate(model: str | None, config_path: Path | None, typed: Typed) -> None:
    from loadgen.class_mix import NO_CLASS, parse_class_mix
    from loadgen.config import BenchError
    from server.log_setup import set_up_logging
    from server.settings import SettingsError, load_settings
    from server.slo_table import SLOTableError, load_slo_classes

    try:
        settings = load_settings(SIMULATE_OPTIONS, typed, {}, config_path)
        config = settings.build(SimulateConfig)
        scheduler = settings.build(SchedulerConfig)
        engine = settings.build(EngineConfig, model_path="")  # its place is known further below
        classes = load_slo_classes(config.classes_path, None)
        shares = parse_class_mix(
            BenchConfig(url="", classes=config.mix), "--mix", ("share", "prompt", "output")
        ).classes
    except (SettingsError, SLOTableError, BenchError) as error:
        _fail(str(error), EXIT_USAGE)
    if None not in (model, config.model) and model != config.model:
        _fail(f"MODEL is {model!r} and --model {config.model!r}: give one", EXIT_USAGE)
    set_up_logging("WARNING")

    # Here and not above: these take seconds to import, and the errors above should not wait for that.
    from rich.console import Console

    from engine.errors import EngineError
    from engine.simulation.traffic import TrafficClass
    from loadgen.traces.trace_error import TraceError
    from server.simulate_command import STDOUT, run_simulate

    mix = tuple(
        TrafficClass(
            classes.default.name if share.name == NO_CLASS else share.name,
            share.share,
            (share.prompt_tokens.low, share.prompt_tokens.high),
            (share.output_tokens.low, share.output_tokens.high),
        )
        for share in shares
    )
    out = _console() if config.json_path == STDOUT else Console()
    out = out if out.is_terminal else Console(stderr=out.stderr, width=_LOG_COLUMNS)
    try:
        replayed = None if config.trace_path is None else _replayed(Path(config.trace_path), config.requests)
        name = model or config.model or DEFAULT_ALIAS
        run_simulate(config, name, engine, scheduler, classes, mix, out, replayed)
    except (EngineError, TraceError) as error:
        _fail(str(error))


def _replayed(path: Path, num_requests: int) -> ReplayedLoad:
    """Raises TraceError, SimulationError: the file is no trace, or one without a rate."""
    from engine.simulation.replayed_load import ReplayedLoad, SeenRequest
    from loadgen.traces.importer import load_trace

    rows = load_trace(path).requests[:num_requests]
    return ReplayedLoad(tuple(SeenRequest(r.t_s, r.in_tokens, r.out_tokens, r.slo_class) for r in rows))


def _config_variable() -> Path | None:
    path = os.environ.get("HEADRACE_CONFIG")
    return Path(path) if path else None


def _resolve(name: str, console: Console) -> ModelPaths:
    """Raises ModelError: the model is not here and cannot be fetched."""
    from server.model_error import ModelNotCachedError
    from server.model_source import pull, resolve_model
    from server.pull_progress import pull_progress

    try:
        return resolve_model(name)
    except ModelNotCachedError:
        with pull_progress(name, console) as events:
            return pull(name, events=events)


def _bench(url: str | None, _config_path: Path | None, typed: Typed) -> None:
    from loadgen.bench import main_bench
    from server.settings import SettingsError, load_settings

    assert url is not None  # required on the command line
    # The key may come from the environment, where other users of the machine do not see it.
    environ = {name: value for name, value in os.environ.items() if name == "HEADRACE_API_KEY"}
    try:
        config = load_settings(BENCH_OPTIONS, typed, environ, None).build(BenchConfig, url=url)
    except SettingsError as error:
        _fail(str(error), EXIT_USAGE)
    raise typer.Exit(main_bench(config))


def _capacity(url: str | None, _config_path: Path | None, typed: Typed) -> None:
    from loadgen.capacity import main_capacity
    from server.settings import SettingsError, load_settings

    assert url is not None  # required on the command line
    environ = {name: value for name, value in os.environ.items() if name == "HEADRACE_API_KEY"}
    try:
        settings = load_settings(CAPACITY_OPTIONS, typed, environ, None)
        config, search = settings.build(BenchConfig, url=url), settings.build(CapacityConfig)
    except SettingsError as error:
        _fail(str(error), EXIT_USAGE)
    raise typer.Exit(main_capacity(config, search))


@app.command("compare", short_help="Two saved results of bench, request by request.")
def compare_command(
    first: Annotated[Path, typer.Argument(help="Of bench --json PATH --save-requests.", metavar="A.json")],
    second: Annotated[Path, typer.Argument(help="Another one of the same plan.", metavar="B.json")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="End with status 3 where a shown change is beyond a limit: attainment.CLASS<-1% (points), "
            "ttft_p99.CLASS>+10%, tpot_p50>+5ms; without a class: all requests; may be repeated.",
            metavar="CONDITION",
        ),
    ] = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="Compare runs of different plans, each as a sample of its own.")
    ] = False,
    allow_invalid: Annotated[
        bool, typer.Option("--allow-invalid", help="Compare runs, too, whose numbers must not be believed.")
    ] = False,
    confidence: Annotated[float, typer.Option(help="Of the intervals.", min=0.5, max=0.999)] = 0.95,
    resamples: Annotated[int, typer.Option(help="Draws of the bootstrap.", min=200)] = 2000,
    seed: Annotated[int, typer.Option(help="Of the bootstrap.", min=0)] = 0,
    json_path: Annotated[
        str | None, typer.Option("--json", help="Write the comparison as JSON to this file; - is stdout.")
    ] = None,
) -> None:
    """Say whether the second of two saved results of `bench` is better: by class, the change of attainment and of TTFT
    and TPOT at p50 and p99, with intervals of a bootstrap over the pairs of requests. Status 0: compared, 2: it cannot
    be, 3: a condition of --fail-if is met."""
    from loadgen.bootstrap import Bootstrap
    from loadgen.compare_command import CompareConfig, main_compare

    config = CompareConfig(
        first_path=first,
        second_path=second,
        is_paired=not unpaired,
        allows_invalid=allow_invalid,
        conditions=tuple(fail_if or ()),
        bootstrap=Bootstrap(resamples, confidence, seed),
        json_path=json_path,
    )
    raise typer.Exit(main_compare(config))


app.command("serve", help=_SERVE_HELP, cls=SectionedCommand)(
    command_of(SERVE_OPTIONS, _serve, "MODEL", _MODEL_HELP, takes_config=True)
)
app.command("profile", help=_PROFILE_HELP, short_help="Measure this machine with a model.", cls=SectionedCommand)(
    command_of(PROFILE_OPTIONS, _profile, "MODEL", _MODEL_HELP)
)
app.command("plan", help=_PLAN_HELP, short_help="Say what a machine could serve in time.", cls=SectionedCommand)(
    command_of(PLAN_OPTIONS, _plan, "MODEL", _PLAN_MODEL_HELP)
)
app.command(
    "simulate", help=_SIMULATE_HELP, short_help="Say who would be served in time under a load.", cls=SectionedCommand
)(command_of(SIMULATE_OPTIONS, _simulate, "MODEL", _PLAN_MODEL_HELP))
app.command(
    "bench", help=_BENCH_HELP, short_help="Load a server; show who met its targets, by class.", cls=SectionedCommand
)(command_of(BENCH_OPTIONS, _bench, "URL", "Of the server, with or without /v1.", is_required=True))
app.command(
    "capacity",
    help=_CAPACITY_HELP,
    short_help="Find the highest rate at which a server keeps its objectives.",
    cls=SectionedCommand,
)(command_of(CAPACITY_OPTIONS, _capacity, "URL", "Of the server, with or without /v1.", is_required=True))
