"""Where a trace comes from and what was done to it: the sidecar beside the file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from loadgen.traces.trace_error import TraceError

META_VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True)
class TraceSource:
    """The published data set that a format belongs to. That a file is a copy of it, only its checksum can tell."""

    name: str
    licence: str
    attribution: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Transform:
    """One change made to the rows, after those before it."""

    name: str
    details: dict[str, int | float | str]


@dataclasses.dataclass(frozen=True, slots=True)
class TraceMeta:
    """Every row read is either in the trace or among `num_dropped`."""

    format: str
    source: TraceSource
    source_file: str
    """Its name without directories."""
    source_sha256: str
    num_rows_read: int
    num_rows_emitted: int
    num_dropped: dict[str, int]
    """By reason."""
    seed: int | None = None
    """None: nothing was drawn. Where more was drawn, the first; the others are with their transforms."""
    transforms: tuple[Transform, ...] = ()
    parts: tuple[TraceMeta, ...] = ()
    """Of the traces that this one was merged of."""

    def check(self) -> None:
        """Raises TraceError: rows were lost or made."""
        num_dropped = sum(self.num_dropped.values())
        if self.num_rows_read != self.num_rows_emitted + num_dropped:
            raise TraceError(
                f"{self.num_rows_read} rows were read, {self.num_rows_emitted} emitted and {num_dropped} dropped: "
                "the counts do not add up; import the trace again"
            )


def encode_meta(meta: TraceMeta, trace_sha256: str) -> str:
    """The sidecar's text; `trace_sha256` is that of the canonical file beside it."""
    body = {"headrace_trace": META_VERSION, "sha256": trace_sha256, **_body(meta)}
    return json.dumps(body, indent=2) + "\n"


def _body(meta: TraceMeta) -> dict[str, Any]:
    body = {
        "format": meta.format,
        "source": {**dataclasses.asdict(meta.source), "file": meta.source_file, "sha256": meta.source_sha256},
        "rows": {"read": meta.num_rows_read, "emitted": meta.num_rows_emitted, "dropped": meta.num_dropped},
        "seed": meta.seed,
        "transforms": [{"name": transform.name, **transform.details} for transform in meta.transforms],
    }
    return {**body, "parts": [_body(part) for part in meta.parts]} if meta.parts else body


def decode_meta(text: str) -> tuple[TraceMeta, str]:
    """The sidecar's content and the checksum of the file beside it.

    Raises:
        TraceError: this is no sidecar of this version, or its counts do not add up.
    """
    try:
        body: dict[str, Any] = json.loads(text)
        if body["headrace_trace"] != META_VERSION:
            raise TraceError(f"the sidecar is of version {body['headrace_trace']}, this program reads {META_VERSION}")
        return _meta(body), str(body["sha256"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TraceError(f"this is no sidecar of a trace ({error!r}); import the trace again, or delete it") from error


def _meta(body: dict[str, Any]) -> TraceMeta:
    source, rows = body["source"], body["rows"]
    meta = TraceMeta(
        format=body["format"],
        source=TraceSource(source["name"], source["licence"], source["attribution"]),
        source_file=source["file"],
        source_sha256=source["sha256"],
        num_rows_read=rows["read"],
        num_rows_emitted=rows["emitted"],
        num_dropped=dict(rows["dropped"]),
        seed=body["seed"],
        transforms=tuple(Transform(entry.pop("name"), entry) for entry in body["transforms"]),
        parts=tuple(_meta(part) for part in body.get("parts", ())),
    )
    meta.check()
    return meta
