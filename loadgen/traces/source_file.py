"""A source, opened: its rows and what is known of it before they are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from loadgen.traces.source_row import DropReason, SourceRow
from loadgen.traces.trace_meta import TraceSource, Transform


@dataclasses.dataclass(frozen=True, slots=True)
class SourceFile:
    """Rows come one by one; each is a request or the reason why it is none."""

    rows: Iterator[SourceRow | DropReason]
    source: TraceSource | None
    """None: its rows tell."""
    transforms: tuple[Transform, ...] = ()
    """What the reader itself does."""
    is_drawn: bool = False
    """Whether the seed matters."""
