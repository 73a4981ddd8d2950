"""A whole load test on a virtual clock: planned, sent, judged and summed up by the code of `headrace bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from loadgen.class_mix import ClassMix, parse_class_mix
from loadgen.client import LoadClient
from loadgen.config import BenchConfig
from loadgen.result import BenchResult, make_result
from loadgen.runner import Runner
from loadgen.server_probe import ServerInfo
from loadgen.targets import TargetBook, parse_overrides
from loadgen.trace import RequestTrace
from loadgen.transport import Transport
from loadgen.workload import PlannedRequest, Workload
from tests.virtual_loop import run_virtually


class QuietObserver:
    """Is told, and does nothing."""

    def started(self, started_s: float) -> None: ...

    def sent(self, planned: PlannedRequest, lag_s: float) -> None: ...

    def finished(self, trace: RequestTrace) -> None: ...


def bench_virtually(
    config: BenchConfig,
    make_transport: Callable[[], Transport],
    mix: ClassMix | None = None,
    requests: Iterator[PlannedRequest] | None = None,
) -> BenchResult:
    """The result of `config` against a transport that is made within the virtual loop."""
    mix = mix or parse_class_mix(config)
    server = ServerInfo("virtual")

    async def bench() -> BenchResult:
        client = LoadClient(config, make_transport(), server, mix)
        run = await Runner(config, client, QuietObserver()).run(
            Workload(config, mix).requests() if requests is None else requests
        )
        book = TargetBook(parse_overrides(config.slo, mix.names, mix.targets), {})
        return make_result(config, mix, server, book, run)

    return run_virtually(bench())
