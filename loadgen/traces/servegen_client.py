"""One client of ServeGen: how its requests arrive, and how long they are, in windows of time."""

from __future__ import annotations

import ast
import csv
import dataclasses
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.traces.naming import naming
from loadgen.traces.trace_error import TraceError

TRACE_SUFFIX = "-trace.csv"
_DATASET_SUFFIX = "-dataset.json"
_ONLY_WINDOW_S = 600.0
_FIELDS = ("input_tokens", "output_tokens")


@dataclasses.dataclass(frozen=True, slots=True)
class ArrivalWindow:
    """Arrivals from `start_s` for `length_s`."""

    start_s: float
    length_s: float
    rate_per_s: float
    family: str
    """`Gamma` or `Weibull`; empty where there are no requests."""
    shape: float


@dataclasses.dataclass(frozen=True, slots=True)
class LengthTable:
    """A distribution of token counts."""

    tokens: npt.NDArray[np.int64]
    """Ascending."""
    cumulative: npt.NDArray[np.float64]
    """Up to 1."""

    def quantiles(self, uniforms: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The counts at numbers in [0, 1)."""
        return self.tokens[np.searchsorted(self.cumulative, uniforms, side="right")]


@dataclasses.dataclass(frozen=True, slots=True)
class ServeGenClient:
    """Windows of arrivals (10 min) and of lengths (6 h), both in order."""

    name: str
    windows: tuple[ArrivalWindow, ...]
    lengths: dict[float, dict[str, str]] | None
    """Start of a window: field → text of a dict from tokens to probability. None: there is no such file."""

    def tables_at(self, time_s: float) -> tuple[LengthTable, LengthTable] | None:
        """Prompts' and answers' lengths; None: there are none for this time."""
        starts = [start for start in self.lengths or {} if start <= time_s]
        if not starts or self.lengths is None:
            return None
        texts = self.lengths[max(starts)]
        tables = [_table(self.name, name, texts) for name in _FIELDS]
        return None if tables[0] is None or tables[1] is None else (tables[0], tables[1])


def read_client(path: Path) -> ServeGenClient:
    """The client of a `chunk-*-trace.csv` and of the `-dataset.json` beside it.

    Raises:
        TraceError: one of them is not what its name says.
    """
    name = path.name.removesuffix(TRACE_SUFFIX)
    with naming(path), path.open(encoding="utf-8-sig", newline="") as file:
        rows = [_window_fields(number, fields) for number, fields in enumerate(csv.reader(file), start=1) if fields]
        windows = _windows(rows)
    dataset = dataset_path(path)
    if not dataset.exists():
        return ServeGenClient(name, windows, None)
    with naming(dataset):
        return ServeGenClient(name, windows, _lengths(dataset.read_text(encoding="utf-8-sig")))


def dataset_path(path: Path) -> Path:
    """Where the lengths of a client's trace file are."""
    return path.with_name(path.name.removesuffix(TRACE_SUFFIX) + _DATASET_SUFFIX)


def _window_fields(number: int, fields: list[str]) -> tuple[float, float, str, float]:
    try:
        start, rate, _, family, shape, _ = fields
        values = float(start), float(rate), family, float(shape or 0)
    except ValueError as error:
        raise TraceError(
            f"line {number}: {','.join(fields)[:100]!r} is not start, rate, cv, family, shape, scale"
        ) from error
    start_s, rate_per_s, _, shape_value = values
    if not (math.isfinite(start_s) and math.isfinite(rate_per_s) and start_s >= 0.0 and rate_per_s >= 0.0):
        raise TraceError(f"line {number}: a start of {start} s and a rate of {rate}/s must be finite and at least 0")
    has_gaps = family in ("Gamma", "Weibull") and math.isfinite(shape_value) and shape_value > 0.0
    if rate_per_s > 0.0 and not has_gaps:
        raise TraceError(f"line {number}: requests need gaps of Gamma or Weibull with a shape above 0, not {fields}")
    return values


def _windows(rows: list[tuple[float, float, str, float]]) -> tuple[ArrivalWindow, ...]:
    lengths_s = [after[0] - before[0] for before, after in itertools.pairwise(rows)] or [_ONLY_WINDOW_S]
    if min(lengths_s) <= 0.0:
        raise TraceError("windows do not follow each other in time")
    lengths_s.append(lengths_s[-1])
    return tuple(
        ArrivalWindow(start_s, length_s, rate_per_s, family, shape)
        for (start_s, rate_per_s, family, shape), length_s in zip(rows, lengths_s, strict=False)
    )


def _lengths(text: str) -> dict[float, dict[str, str]]:
    try:
        body: dict[str, Any] = json.loads(text)
        return {float(start): {name: str(value) for name, value in texts.items()} for start, texts in body.items()}
    except (ValueError, AttributeError) as error:
        raise TraceError(f"not the lengths of a client: {error}") from error


def _table(client: str, name: str, texts: dict[str, str]) -> LengthTable | None:
    if name not in texts:
        raise TraceError(
            f"client {client} has no {name}, only {', '.join(texts)}: clients of language and reasoning models are "
            "read, not multimodal ones"
        )
    try:
        body = ast.literal_eval(texts[name])
        if not (isinstance(body, dict) and all(type(count) is int for count in body)):
            raise ValueError(f"{texts[name][:40]!r} has no counts")
        if not body:
            return None
        tokens = np.array(sorted(body), dtype=np.int64)
        weights = np.array([body[count] for count in sorted(body)], dtype=np.float64)
    except (ValueError, SyntaxError, TypeError, OverflowError) as error:
        raise TraceError(f"client {client}: {name} is no dict from tokens to probability: {error}") from error
    total = weights.sum()
    if not (np.isfinite(total) and total > 0.0 and weights.min() >= 0.0):
        raise TraceError(f"client {client}: the probabilities of {name} sum to {total}")
    cumulative = np.cumsum(weights) / total
    cumulative[-1] = 1.0
    return LengthTable(tokens, cumulative)
