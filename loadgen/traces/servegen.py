"""ServeGen as a generator: a trace drawn from its clients' arrivals and lengths (Xiang et al., arXiv:2505.09999)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadgen.traces.import_config import ImportConfig
from loadgen.traces.servegen_client import (
    TRACE_SUFFIX,
    ArrivalWindow,
    LengthTable,
    ServeGenClient,
    dataset_path,
    read_client,
)
from loadgen.traces.source_format import SERVEGEN_FILES
from loadgen.traces.source_row import DropReason, SourceRow, row_of
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import TraceSource, Transform

SERVEGEN_SOURCE = TraceSource(
    "ServeGen, github.com/alibaba/ServeGen",
    "Apache-2.0 (of the repository)",
    "Xiang et al., ServeGen: Workload Characterization and Generation of LLM Serving in Production, arXiv:2505.09999",
)
_MAX_WINDOWS_SHOWN = 3
_MAX_REQUESTS = 50_000_000
_COUNT_SLACK = 1e-6
"""Rates are counts over a window's length; so much may rounding add to a count or take from it."""

_Drawn = tuple[float, SourceRow | DropReason]


def client_files(path: Path) -> tuple[Path, ...]:
    """The trace files of a directory, or the one that is named.

    Raises:
        TraceError: the file's name is not that of a client, so its lengths cannot be found.
    """
    if path.is_dir():
        return tuple(sorted(path.glob(SERVEGEN_FILES)))
    if not path.name.endswith(TRACE_SUFFIX):
        raise TraceError(f"a client's file is named chunk-N{TRACE_SUFFIX}, so that chunk-N-dataset.json is found")
    return (path,)


def source_files(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """All files that are read, in a fixed order."""
    beside = (dataset_path(path) for path in paths)
    return (*paths, *(path for path in beside if path.exists()))


def read_servegen(
    paths: tuple[Path, ...], config: ImportConfig
) -> tuple[Iterator[SourceRow | DropReason], tuple[Transform, ...]]:
    """The requests of all clients in the order of their times, and what is drawn.

    In each window a client has its rate times the window's length of requests. Gaps of its distribution are stretched
    so that they fill the window, as upstream does. Upstream has its last request on the window's end and loses it;
    here the window is a circle that begins anywhere. A fraction of a request is carried into the client's next
    window. The lengths of prompt and answer come from one random number, as upstream.

    Raises:
        TraceError: no duration is given, a client has no lengths, or there is nothing to draw.
    """
    if config.duration_s is None:
        raise TraceError(
            "ServeGen is a model of clients and no log: draw a trace with `headrace trace import --format servegen "
            "--duration SECONDS --seed N --out PATH`"
        )
    end_s = config.start_s + config.duration_s
    clients, skipped = _complete(tuple(read_client(path) for path in paths), config.skip_incomplete)
    native_per_s = sum(_expected(client, config.start_s, end_s) for client in clients) / config.duration_s
    if not native_per_s:
        raise TraceError(f"no client has requests from {config.start_s:g} to {end_s:g} s; {_busy_windows(clients)}")
    factor = 1.0 if config.rate_per_s is None else config.rate_per_s / native_per_s
    _check_size(clients, config.start_s, end_s, factor)
    drawn = [each for client in clients for each in _draw(client, config.start_s, end_s, factor, config.seed)]
    drawn.sort(key=lambda each: each[0])
    details: dict[str, int | float | str] = {
        "clients": len(clients),
        "start_s": config.start_s,
        "duration_s": config.duration_s,
        "rate_factor": factor,
        "seed": config.seed,
    }
    transforms = [Transform("draw", details)]
    if skipped:
        transforms.append(Transform("skip_incomplete", {"clients": ", ".join(skipped)}))
    return (row for _, row in drawn), tuple(transforms)


def _busy_windows(clients: tuple[ServeGenClient, ...]) -> str:
    """Which windows have requests, for a message."""
    busy = sorted(
        {(w.start_s, w.start_s + w.length_s) for client in clients for w in client.windows if w.rate_per_s > 0.0}
    )
    if not busy:
        return "none of their windows has any: fetch other clients"
    shown = ", ".join(f"{start:g}-{end:g} s" for start, end in busy[:_MAX_WINDOWS_SHOWN])
    more = f" and {len(busy) - _MAX_WINDOWS_SHOWN} more" if len(busy) > _MAX_WINDOWS_SHOWN else ""
    return f"choose with --start one that has: {shown}{more}"


def _complete(
    clients: tuple[ServeGenClient, ...], skip_incomplete: bool
) -> tuple[tuple[ServeGenClient, ...], list[str]]:
    incomplete = [client.name for client in clients if client.lengths is None]
    if incomplete and not skip_incomplete:
        raise TraceError(
            f"{', '.join(incomplete)}: no dataset.json beside the trace.csv, so no lengths; fetch it, or leave such "
            "clients out with --skip-incomplete"
        )
    complete = tuple(client for client in clients if client.lengths is not None)
    if not complete:
        raise TraceError("no client has lengths; fetch the dataset.json files")
    return complete, incomplete


def _expected(client: ServeGenClient, start_s: float, end_s: float) -> float:
    """Requests between two times."""
    parts = (
        window.rate_per_s * (min(end_s, window.start_s + window.length_s) - max(start_s, window.start_s))
        for window in _overlapping(client, start_s, end_s)
    )
    return sum(parts)


def _check_size(clients: tuple[ServeGenClient, ...], start_s: float, end_s: float, factor: float) -> None:
    """Raises TraceError: so many requests do not fit into memory. Windows are drawn whole."""
    windows = [window for client in clients for window in _overlapping(client, start_s, end_s)]
    num_requests = factor * sum(window.rate_per_s * window.length_s for window in windows)
    if not num_requests <= _MAX_REQUESTS:
        raise TraceError(
            f"{num_requests:,.0f} requests are more than {_MAX_REQUESTS:,}; give a shorter --duration or a lower --rate"
        )


def _overlapping(client: ServeGenClient, start_s: float, end_s: float) -> list[ArrivalWindow]:
    return [each for each in client.windows if each.start_s < end_s and each.start_s + each.length_s > start_s]


def _draw(client: ServeGenClient, start_s: float, end_s: float, factor: float, seed: int) -> Iterator[_Drawn]:
    # Each client has numbers of its own, so that another one beside it changes nothing. RandomState's streams are
    # frozen, those of numpy's newer generators may change with a version.
    rng = np.random.RandomState([seed % 2**32, zlib.crc32(client.name.encode())])
    carried = rng.random_sample()
    tables_of: dict[float, tuple[LengthTable, LengthTable] | None] = {}
    for window in _overlapping(client, start_s, end_s):
        carried += window.rate_per_s * factor * window.length_s
        count = math.floor(carried + _COUNT_SLACK)
        carried = max(carried - count, 0.0)
        if not count:
            continue
        times_s = _times(window, count, rng)
        uniforms = rng.random_sample(count)
        section = max((start for start in client.lengths or {} if start <= window.start_s), default=-1.0)
        if section not in tables_of:
            tables_of = {section: client.tables_at(window.start_s)}
        rows = _rows(client.name, times_s, uniforms, tables_of[section])
        yield from (drawn for drawn in rows if start_s <= drawn[0] < end_s)


def _times(window: ArrivalWindow, count: int, rng: np.random.RandomState) -> npt.NDArray[np.float64]:
    """`count` times inside the window, its gaps those of the distribution.

    Raises:
        TraceError: the shape is so extreme that the gaps are no numbers.
    """
    draw = rng.standard_gamma if window.family == "Gamma" else rng.weibull
    gaps = draw(window.shape, count)
    total = float(gaps.sum())
    if not (math.isfinite(total) and total > 0.0):
        raise TraceError(
            f"gaps of {window.family} with a shape of {window.shape} sum to {total}; leave the window at "
            f"{window.start_s:g} s out with --start or --duration"
        )
    turns = np.cumsum(gaps) / total + rng.random_sample()
    times: npt.NDArray[np.float64] = window.start_s + window.length_s * np.sort(turns % 1.0)
    return times


def _rows(
    client: str,
    times_s: npt.NDArray[np.float64],
    uniforms: npt.NDArray[np.float64],
    tables: tuple[LengthTable, LengthTable] | None,
) -> Iterator[_Drawn]:
    if tables is None:
        yield from ((time_s, DropReason.NO_LENGTHS) for time_s in times_s.tolist())
        return
    in_tokens, out_tokens = (table.quantiles(uniforms).tolist() for table in tables)
    for time_s, num_in, num_out in zip(times_s.tolist(), in_tokens, out_tokens, strict=True):
        yield time_s, row_of(SourceRow(round(time_s * 10**9), num_in, num_out, kind=client))
