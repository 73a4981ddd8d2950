"""One copy between device and host memory, as it is asked for."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.block_copy import BlockCopier


class Direction(StrEnum):
    """Way over the link."""

    H2D = "h2d"
    D2H = "d2h"

    @property
    def opposite(self) -> Direction:
        return Direction.D2H if self is Direction.H2D else Direction.H2D


class TransferClass(StrEnum):
    """What a transfer is for. Of equally urgent transfers the class named first goes first."""

    WEIGHTS = "weights"
    KV_LOAD = "kv_load"
    KV_STORE = "kv_store"
    BACKGROUND = "background"

    @property
    def is_kv(self) -> bool:
        """Whether it is of a running or admitted request's KV, which weights must not starve."""
        return self in (TransferClass.KV_LOAD, TransferClass.KV_STORE)


class StreamEvent(Protocol):
    """Something that a stream of an accelerator can wait for, as `torch.cuda.Event`."""

    def wait(self, stream: Any = None) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class LinkTransfer(Protocol):
    """What links carry: bytes 0..num_bytes-1, in this order, wherever they lie at either end.

    `Transfer` is of bytes in a row, `BlockTransfer` of pieces that are scattered over two pools. Until its handle is
    done the link may read the source and write the target.
    """

    @property
    def direction(self) -> Direction: ...

    @property
    def transfer_class(self) -> TransferClass: ...

    @property
    def source(self) -> Tensor:
        """Of which it copies all or a part."""
        ...

    @property
    def target(self) -> Tensor: ...

    @property
    def deadline_s(self) -> float:
        """When the last byte is wanted, on the clock of the link (`Link.now_s`); infinity for whenever it suits."""
        ...

    @property
    def after(self) -> StreamEvent | None:
        """What must have happened on the accelerator before the first byte moves."""
        ...

    @property
    def num_bytes(self) -> int: ...

    def pieces(self, start: int, end: int) -> Sequence[tuple[Tensor, Tensor]]:
        """Bytes [start, end) as (target, source), both [n] uint8 and contiguous, in their order."""
        ...

    def copy(self, start: int, end: int, copy_blocks: BlockCopier) -> None:
        """Bytes [start, end) between two places in main memory, without the interpreter's lock."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """`source` is copied over `target`; both belong to the link until its handle is done.

    `source` and `target` are [n] uint8, contiguous, of one length and not overlapping. `deadline_s` is when the last
    byte is wanted, on the clock of the link (`Link.now_s`); infinity for whenever it suits. `after` is what must have
    happened on the accelerator before the first byte moves; None where that already holds, as it must on a CPU.

    Raises:
        ValueError: the tensors are not as said, or the deadline is no time.
    """

    direction: Direction
    transfer_class: TransferClass
    source: Tensor
    target: Tensor
    deadline_s: float
    after: StreamEvent | None = None

    def __post_init__(self) -> None:
        for name, tensor in (("source", self.source), ("target", self.target)):
            if tensor.dtype != torch.uint8 or tensor.dim() != 1 or not tensor.is_contiguous():
                raise ValueError(
                    f"{name} of a transfer is {tensor.dtype} {tuple(tensor.shape)}; it must be contiguous uint8 [n]"
                )
        if self.source.numel() != self.target.numel():
            raise ValueError(f"a transfer of {self.source.numel():,} bytes into {self.target.numel():,} bytes")
        check_deadline(self.deadline_s)

    @property
    def num_bytes(self) -> int:
        return self.source.numel()

    def pieces(self, start: int, end: int) -> Sequence[tuple[Tensor, Tensor]]:
        """As `LinkTransfer` says: one."""
        return [(self.target[start:end], self.source[start:end])] if start < end else []

    def copy(self, start: int, end: int, copy_blocks: BlockCopier) -> None:  # noqa: ARG002 - there are no blocks
        """As `LinkTransfer` says. By `memmove` of the C library, which needs no threads of torch."""
        ctypes.memmove(self.target.data_ptr() + start, self.source.data_ptr() + start, end - start)


def check_deadline(deadline_s: float) -> None:
    """Raises: ValueError: it is no time."""
    if math.isnan(deadline_s):
        raise ValueError("the deadline of a transfer is not a number; use infinity where there is none")
