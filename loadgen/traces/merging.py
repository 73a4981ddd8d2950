"""Several traces as one load, each with a class of its own."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from loadgen.traces.scaling import scale_to_rate
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import TraceMeta, TraceSource, Transform
from loadgen.traces.trace_request import TraceRequest

_SPEC = re.compile(r"(?P<path>.+?)(?P<options>(?::(?:class|rate)=[^:]*)*)")


@dataclasses.dataclass(frozen=True, slots=True)
class MergeSpec:
    """One trace to merge, as it is named on the command line."""

    path: Path
    slo_class: str | None = None
    """None: the classes that the trace has."""
    rate_per_s: float | None = None
    """The mean rate to which it is scaled; None: its own."""


def parse_merge_spec(text: str) -> MergeSpec:
    """`FILE[:class=NAME][:rate=REQUESTS_PER_S]`.

    Raises:
        TraceError: an option has no value or is given twice, or the rate is no number.
    """
    match = _SPEC.fullmatch(text)
    if match is None:
        raise TraceError(f"{text!r} names no file; write FILE[:class=NAME][:rate=REQUESTS_PER_S]")
    pairs = [part.split("=", 1) for part in match["options"].split(":")[1:]]
    options = dict(pairs)
    if len(options) < len(pairs):
        twice = next(name for name in options if sum(key == name for key, _ in pairs) > 1)
        raise TraceError(f"{text!r} gives {twice} twice; write FILE[:class=NAME][:rate=REQUESTS_PER_S]")
    if not all(options.values()):
        raise TraceError(f"{text!r} has an option without a value; write FILE[:class=NAME][:rate=REQUESTS_PER_S]")
    try:
        rate_per_s = float(options["rate"]) if "rate" in options else None
    except ValueError as error:
        raise TraceError(f"{text!r}: a rate of {options['rate']!r} is no number of requests/s") from error
    return MergeSpec(Path(match["path"]), options.get("class"), rate_per_s)


def merge(traces: Sequence[tuple[Trace, MergeSpec]], shortest: bool = False) -> Trace:
    """All requests in the order of their times, every trace beginning at 0.

    Sessions and blocks of different traces stay apart. At equal times the trace that was named first comes first.

    Args:
        traces: each with its class and rate.
        shortest: end with the trace that ends first, so that every moment has all of them.

    Raises:
        TraceError: there is but one trace, or one that has no rate is to be scaled to one.
    """
    if len(traces) < 2:
        raise TraceError("one trace alone has nothing to merge with; name two or more")
    parts = [_prepared(trace, spec) for trace, spec in traces]
    end_s = min(part.requests[-1].t_s for part in parts) if shortest else float("inf")
    blocks: dict[tuple[int, int], int] = {}
    placed = [
        (request.t_s, number, index, _apart(request, number, blocks))
        for number, part in enumerate(parts)
        for index, request in enumerate(part.requests)
        if request.t_s <= end_s
    ]
    placed.sort(key=lambda each: each[:3])
    new_ids = {(number, index): new for new, (_, number, index, _) in enumerate(placed)}
    requests = tuple(
        dataclasses.replace(request, after=None if request.after is None else new_ids[number, request.after])
        for _, number, _, request in placed
    )
    return Trace(requests, _meta(parts, len(requests), end_s if shortest else None))


def _prepared(trace: Trace, spec: MergeSpec) -> Trace:
    if spec.rate_per_s is not None:
        trace = scale_to_rate(trace, spec.rate_per_s)
    origin_s = trace.requests[0].t_s
    requests = [dataclasses.replace(each, t_s=round(each.t_s - origin_s, 9)) for each in trace.requests]
    transforms = [Transform("align_to_zero", {"origin_s": origin_s})] if origin_s else []
    if spec.slo_class is not None:
        requests = [dataclasses.replace(each, slo_class=spec.slo_class) for each in requests]
        transforms.append(Transform("label", {"class": spec.slo_class}))
    meta = dataclasses.replace(trace.meta, transforms=(*trace.meta.transforms, *transforms))
    return Trace(tuple(requests), meta)


def _apart(request: TraceRequest, number: int, blocks: dict[tuple[int, int], int]) -> TraceRequest:
    """The request with names that no other trace has."""
    prefix = request.prefix
    if prefix is not None:
        prefix = tuple(blocks.setdefault((number, block), len(blocks)) for block in prefix)
    session = None if request.session is None else f"{number}/{request.session}"
    return dataclasses.replace(request, session=session, prefix=prefix)


def _meta(parts: Sequence[Trace], num_emitted: int, end_s: float | None) -> TraceMeta:
    metas = tuple(part.meta for part in parts)
    dropped: collections.Counter[str] = collections.Counter()
    for meta in metas:
        dropped.update(meta.num_dropped)
    num_past_end = sum(len(part.requests) for part in parts) - num_emitted
    if num_past_end:
        dropped["past_the_shortest"] += num_past_end
    details: dict[str, int | float | str] = {"traces": len(parts)}
    if end_s is not None:
        details["shortest_s"] = end_s
    listing = "".join(f"{meta.source_sha256}  {meta.source_file}\n" for meta in metas)
    merged = TraceMeta(
        format="merged",
        source=TraceSource(
            " + ".join(dict.fromkeys(meta.source.name for meta in metas)),
            "; ".join(dict.fromkeys(meta.source.licence for meta in metas)),
            "; ".join(dict.fromkeys(meta.source.attribution for meta in metas if meta.source.attribution)) or None,
        ),
        source_file=" + ".join(meta.source_file for meta in metas),
        source_sha256=hashlib.sha256(listing.encode()).hexdigest(),
        num_rows_read=sum(meta.num_rows_read for meta in metas),
        num_rows_emitted=num_emitted,
        num_dropped=dict(dropped),
        seed=next((meta.seed for meta in metas if meta.seed is not None), None),
        transforms=(Transform("merge", details),),
        parts=metas,
    )
    merged.check()
    return merged
