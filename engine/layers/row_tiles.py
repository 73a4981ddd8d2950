"""How row-wise computations are cut: all rows of the step at once, or in tiles of one fixed number of rows.

The bits of a matrix product may depend on the number of rows it is called with. In tiles of a fixed size they depend
on the row alone: the shape never changes, and no number of one row enters another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

RowFunction = Callable[..., tuple[Tensor, ...]]
"""Takes tensors of R rows each and returns tensors of R rows each."""
TILE_SIZES = (32, 16, 8, 4, 2, 1)


class RowMap(Protocol):
    """Applies a row-wise function to rows."""

    def __call__(self, function: RowFunction, *rows: Tensor) -> tuple[Tensor, ...]:
        """`rows` are tensors [R, ...] of equal R; returns what `function` makes of them, R rows each."""


def whole_batch(function: RowFunction, *rows: Tensor) -> tuple[Tensor, ...]:
    """One call with all rows."""
    return function(*rows)


class FixedTiles:
    """Calls of exactly `size` rows, the last filled up with zeros."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a tile has {size} rows, it must have at least 1")
        self.size = size

    def __call__(self, function: RowFunction, *rows: Tensor) -> tuple[Tensor, ...]:
        num_rows = len(rows[0])
        parts = [self._tile(function, rows, start) for start in range(0, num_rows, self.size)]
        return tuple(torch.cat(column)[:num_rows] for column in zip(*parts, strict=True))

    def _tile(self, function: RowFunction, rows: tuple[Tensor, ...], start: int) -> tuple[Tensor, ...]:
        tile = [part[start : start + self.size] for part in rows]
        missing = self.size - len(tile[0])
        # a copy each time: where a tensor begins in memory may steer a kernel too
        padded = [functional.pad(part, (0, 0) * (part.dim() - 1) + (0, missing)) for part in tile]
        return function(*(part.clone() if missing == 0 else part for part in padded))


def widest_tiles(functions: Iterable[tuple[RowFunction, tuple[Tensor, ...]]]) -> FixedTiles:
    """The largest tile in which no function treats a row by its place.

    Args:
        functions: each with one row [1, ...] of every input. A tile of equal rows must give equal rows, bit by bit:
            kernels do not branch on values, so what holds for these rows holds for all. A tile of one row always does.
    """
    cases = list(functions)
    for size in TILE_SIZES:
        outputs = [function(*(row.expand(size, *row.shape[1:]).clone() for row in rows)) for function, rows in cases]
        if all(torch.equal(out, out[:1].expand_as(out)) for parts in outputs for out in parts):
            return FixedTiles(size)
    raise AssertionError("a tile of one row differs from itself: the computation is not deterministic")
