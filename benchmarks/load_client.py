"""How many streams one core of the load generator reads: send lag, and how late tokens are stamped, while they run.

The server (`benchmarks.stream_server`) has the other core. Streams begin at random times at a rate that keeps the
number asked for open; those that begin while the number is still rising, or after the last one is due, do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from loadgen.bench import run_bench
from loadgen.config import BenchConfig
from loadgen.result import BenchResult
from loadgen.trace import TraceEnd

_REQUIRED_LAG_MS = 10.0
_REQUIRED_STREAMS = 1000
_ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Of one run."""

    min_open: float
    """Streams open at once in the steady window: the fewest of its moments."""
    tokens_per_s: float
    lag_ms: tuple[float, float, float]
    """P50, P99, maximum."""
    gap_error_ms: tuple[float, float]
    """How far the gap between two tokens is from the server's: P50, P99."""
    processor_us_per_token: float
    """Of the client, for all that it does."""
    num_not_completed: int

    @property
    def is_met(self) -> bool:
        """The requirement holds."""
        return self.lag_ms[1] < _REQUIRED_LAG_MS and self.min_open >= _REQUIRED_STREAMS and self.num_not_completed == 0


@contextlib.contextmanager
def _server(gap_ms: float, core: int) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.stream_server", f"--gap-ms={gap_ms}", f"--core={core}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _figures(result: BenchResult, gap_ms: float, processor_s: float) -> Figures:
    start_s = result.run.started_s + result.window.start_s
    end_s = result.run.started_s + (result.run.arrival_window_s or 0.0)
    moments = np.arange(start_s, end_s, 0.1)
    sent = np.sort([trace.sent_s for trace in result.run.traces])
    ended = np.sort([trace.finished_s or trace.sent_s for trace in result.run.traces])
    num_open = np.searchsorted(sent, moments) - np.searchsorted(ended, moments)
    times = [np.array([chunk.time_s for chunk in trace.chunks]) for trace in result.run.traces]
    num_tokens = sum(int(((each >= start_s) & (each < end_s)).sum()) for each in times)
    errors_ms = np.abs(np.concatenate([np.diff(each) for each in times]) * 1000.0 - gap_ms)
    lag = result.overall.send_lag
    assert lag is not None, "no request was counted"
    return Figures(
        min_open=float(num_open.min()),
        tokens_per_s=num_tokens / (end_s - start_s),
        lag_ms=(lag.p50_s * 1000.0, lag.p99_s * 1000.0, lag.max_s * 1000.0),
        gap_error_ms=(float(np.quantile(errors_ms, 0.5)), float(np.quantile(errors_ms, 0.99))),
        processor_us_per_token=processor_s * 1e6 / sum(map(len, times)),
        num_not_completed=sum(trace.end is not TraceEnd.COMPLETED for trace in result.run.traces),
    )


def measure(num_streams: int, tokens_per_s: float, tokens: int, seconds: float) -> Figures:
    """One run on core 0 against a server on core 1."""
    length_s = tokens / tokens_per_s
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("two cores are needed: one for the client, one for the server")
    os.sched_setaffinity(0, {cores[0]})
    with _server(1000.0 / tokens_per_s, cores[1]) as url:
        config = BenchConfig(
            url,
            rate=1.1 * num_streams / length_s,  # a tenth more, so that chance does not take it below the number
            duration_s=length_s + seconds,
            warm_up_s=length_s,
            prompt_tokens="64",
            output_tokens=str(tokens),
            max_send_lag=1e9,
            scrape=False,
            progress=False,
        )
        begun_s = time.process_time()
        result = asyncio.run(run_bench(config, Console(stderr=True)))
        processor_s = time.process_time() - begun_s
    return _figures(result, 1000.0 / tokens_per_s, processor_s)


def main() -> None:
    """Print the figures; the status is 1 where the requirement is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=_REQUIRED_STREAMS)
    parser.add_argument("--tokens-per-s", type=float, default=20.0, help="of each stream")
    parser.add_argument("--tokens", type=int, default=300, help="of each stream")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the steady window")
    arguments = parser.parse_args()
    figures = measure(arguments.streams, arguments.tokens_per_s, arguments.tokens, arguments.seconds)
    print(f"streams open, at least     {figures.min_open:.0f}")
    print(f"tokens/s                   {figures.tokens_per_s:.0f}")
    print("send lag ms, p50 p99 max   {:.2f} {:.2f} {:.2f}".format(*figures.lag_ms))
    print("gap error ms, p50 p99      {:.2f} {:.2f}".format(*figures.gap_error_ms))
    print(f"processor us a token       {figures.processor_us_per_token:.1f}")
    print(f"not completed              {figures.num_not_completed}")
    print("met" if figures.is_met else f"NOT MET: {_REQUIRED_STREAMS} streams, lag p99 under {_REQUIRED_LAG_MS:g} ms")
    sys.exit(0 if figures.is_met else 1)


if __name__ == "__main__":
    main()
