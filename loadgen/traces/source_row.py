"""One row of a published trace, before the whole of it is known."""

from __future__ import annotations

import dataclasses
import enum


class DropReason(enum.Enum):
    """Why a row is not in the trace."""

    MALFORMED = "malformed"  # fields missing or not of their type, as the last line of a file that was cut
    NO_INPUT = "no_input_tokens"
    NO_OUTPUT = "no_output_tokens"  # of requests that failed
    TOO_LONG = "too_long"


@dataclasses.dataclass(frozen=True, slots=True)
class SourceRow:
    """A row that can be replayed."""

    time_ns: int
    """On the source's own clock."""
    in_tokens: int
    out_tokens: int
    prefix: tuple[int, ...] | None = None
    block: int | None = None


def row_of(row: SourceRow) -> SourceRow | DropReason:
    """The row, or why it cannot be replayed."""
    if row.in_tokens < 1:
        return DropReason.NO_INPUT
    return DropReason.NO_OUTPUT if row.out_tokens < 1 else row
