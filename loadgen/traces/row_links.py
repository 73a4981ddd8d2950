"""Which request waits for which: from the source's own names to the ids of the canonical form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from loadgen.traces.source_row import SourceRow
from loadgen.traces.trace_meta import Transform


@dataclasses.dataclass(frozen=True, slots=True)
class RowLinks:
    """For rows in the order of their times."""

    after: tuple[int | None, ...]
    """The id of the request that each one waits for."""
    transforms: tuple[Transform, ...]
    """What could not be kept."""


def link(rows: Sequence[SourceRow]) -> RowLinks:
    """Find the rows that others name.

    A row whose predecessor was dropped, is not in the file or came later waits for nothing: it is an orphan. Of
    several predecessors the one that ended last stays, as the canonical form holds one.
    """
    ids: dict[str, int] = {}
    after: list[int | None] = []
    num_orphans = num_cut = 0
    for index, row in enumerate(rows):
        known = [ids[key] for key in row.after if key in ids]
        num_orphans += bool(row.after) and not known
        num_cut += max(len(known) - 1, 0)
        after.append(known[-1] if known else None)
        if row.key is not None:
            ids[row.key] = index
    transforms = []
    if num_orphans:
        transforms.append(Transform("orphans", {"requests": num_orphans}))
    if num_cut:
        transforms.append(Transform("keep_last_predecessor", {"links_cut": num_cut}))
    return RowLinks(tuple(after), tuple(transforms))
