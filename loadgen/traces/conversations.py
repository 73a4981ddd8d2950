"""Which requests of a trace belong together, and what becomes of their links when some are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from loadgen.traces.trace_request import TraceRequest


def conversations(requests: Sequence[TraceRequest]) -> list[int]:
    """For each request the id of the first one of its conversation.

    Requests of one session belong together, and so do a request and the one that it waits for.
    """
    parents = list(range(len(requests)))
    first_of: dict[str, int] = {}
    for index, request in enumerate(requests):
        if request.session is not None:
            _join(parents, first_of.setdefault(request.session, index), index)
        if request.after is not None:
            _join(parents, request.after, index)
    return [_root(parents, index) for index in range(len(requests))]


def _root(parents: list[int], index: int) -> int:
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _join(parents: list[int], left: int, right: int) -> None:
    """The smaller id stays the root."""
    left, right = sorted((_root(parents, left), _root(parents, right)))
    parents[right] = left


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """The requests that are left, with the ids that they have now."""

    requests: tuple[TraceRequest, ...]
    num_links_cut: int
    """Requests that waited for one that is not among them; they wait for nothing now."""


def keep(requests: Sequence[TraceRequest], is_kept: Sequence[bool]) -> Kept:
    """Leave requests out. One flag for each request."""
    new_ids: dict[int, int] = {}
    left: list[TraceRequest] = []
    num_links_cut = 0
    for index, (request, stays) in enumerate(zip(requests, is_kept, strict=True)):
        if not stays:
            continue
        new_ids[index] = len(left)
        if request.after is not None:
            after = new_ids.get(request.after)
            num_links_cut += after is None
            request = dataclasses.replace(request, after=after, think_s=None if after is None else request.think_s)
        left.append(request)
    return Kept(tuple(left), num_links_cut)
