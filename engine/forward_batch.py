"""The tensors of a step, made from the scheduler's records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.block_tables import BlockTables
from engine.sequence import Sequence
from kernels.attention.base import AttentionMetadata
from scheduler.output import ScheduledRequest


@dataclasses.dataclass(frozen=True, slots=True)
class ForwardBatch:
    """T tokens of S sequences back to back. Owned by the runner, valid for one step."""

    token_ids: Tensor
    """[T] int64."""
    metadata: AttentionMetadata
    first_tokens: npt.NDArray[np.int64]
    """[S] index in the batch of each sequence's first token."""
    last_tokens: npt.NDArray[np.int64]
    """[S] index in the batch of each sequence's last token."""


def make_forward_batch(
    scheduled: Items[ScheduledRequest],
    sequences: Items[Sequence],
    rows: npt.NDArray[np.int64],
    block_tables: BlockTables,
) -> ForwardBatch:
    """Lay out a step in numpy, then hand each array to torch once, without copying.

    Args:
        scheduled: S records, at least one.
        sequences: the sequence of each.
        rows: [S] the row of block table of each, already holding the blocks of this step.
        block_tables: read only.

    Raises:
        ValueError: a record covers tokens that the sequence does not have.
    """
    num_tokens = np.array([record.num_tokens for record in scheduled], dtype=np.int64)
    num_computed = np.array([record.num_computed_tokens for record in scheduled], dtype=np.int64)
    contexts = num_computed + num_tokens
    ends = num_tokens.cumsum()
    starts = ends - num_tokens
    # One token each is the usual step: no repeats to lay out.
    decodes = len(scheduled) == ends[-1]
    owners = rows if decodes else rows.repeat(num_tokens)
    positions = num_computed if decodes else np.arange(ends[-1]) + (num_computed - starts).repeat(num_tokens)
    metadata = AttentionMetadata(
        query_lens=tuple(num_tokens.tolist()),
        context_lens=tuple(contexts.tolist()),
        block_tables=torch.from_numpy(block_tables.gather(rows, int(contexts.max()))),
        slot_mapping=torch.from_numpy(block_tables.slots(owners, positions)),
        positions=torch.from_numpy(positions),
    )
    token_ids = _token_ids(scheduled, sequences, int(ends[-1]))
    return ForwardBatch(torch.from_numpy(token_ids), metadata, starts, ends - 1)


def _token_ids(scheduled: Items[ScheduledRequest], sequences: Items[Sequence], total: int) -> npt.NDArray[np.int64]:
    """[T] the tokens that the records cover."""
    token_ids = np.empty(total, dtype=np.int64)
    start = 0
    for record, sequence in zip(scheduled, sequences, strict=True):
        first, end = record.num_computed_tokens, record.num_computed_tokens + record.num_tokens
        if end > sequence.num_tokens:
            raise ValueError(
                f"{record.request_id}: tokens {first} to {end} are scheduled, it has only {sequence.num_tokens}"
            )
        token_ids[start : start + record.num_tokens] = sequence.token_ids[first:end]
        start += record.num_tokens
    return token_ids
