"""One row of a published trace, before the whole of it is known."""

from __future__ import annotations

import dataclasses
import enum

from loadgen.traces.trace_request import MAX_TOKENS


class DropReason(enum.Enum):
    """Why a row is not in the trace."""

    MALFORMED = "malformed"  # fields missing or not of their type, as the last line of a file that was cut
    NO_INPUT = "no_input_tokens"
    NO_OUTPUT = "no_output_tokens"  # of requests that failed
    NO_LENGTHS = "no_lengths_in_this_window"  # a request drawn where the source has no distribution of lengths
    NOT_LLM = "no_language_model_request"
    SEVERAL_SEQUENCES = "several_sequences"
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
    kind: str | None = None
    """What the source tells its requests apart by: a type of log, a client."""
    session: str | None = None
    turn: int = 0
    key: str | None = None
    """The source's own name of this row, by which later ones know it."""
    after: tuple[str, ...] = ()
    """Keys of the rows whose answers this one needed, the one that ended last at the end."""
    think_s: float | None = None
    """From that answer's end to this row; None: the source does not tell when answers end."""
    text: str | None = None


def row_of(row: SourceRow) -> SourceRow | DropReason:
    """The row, or why it cannot be replayed."""
    if max(row.in_tokens, row.out_tokens) > MAX_TOKENS:
        return DropReason.MALFORMED
    if row.in_tokens < 1:
        return DropReason.NO_INPUT
    return DropReason.NO_OUTPUT if row.out_tokens < 1 else row
