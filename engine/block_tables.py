"""The block tables of the running sequences, as rows of one array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class BlockTables:
    """Owns [max_num_seqs, max_blocks] int64; a row is a sequence's blocks in order, 0 past its last one.

    Invariant: a row is either free (and all 0) or assigned to one sequence.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self._table = np.zeros((max_num_seqs, -(-max_model_len // block_size)), dtype=np.int64)
        self._block_size = block_size
        self._free = list(range(max_num_seqs - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def assign(self) -> int:
        """Take a row.

        Raises:
            RuntimeError: every row is taken; the scheduler runs more sequences than it was allowed.
        """
        if not self._free:
            raise RuntimeError(f"all {len(self._table)} rows of block table are taken; max_num_seqs must be raised")
        return self._free.pop()

    def release(self, row: int) -> None:
        """Give an assigned row back."""
        self._table[row] = 0
        self._free.append(row)

    def write(self, row: int, first: int, block_ids: tuple[int, ...]) -> None:
        """Put blocks into a row from index `first` on; `first` 0 replaces the whole table.

        Raises:
            ValueError: the table would be longer than max_model_len needs.
        """
        capacity = self._table.shape[1]
        if first + len(block_ids) > capacity:
            raise ValueError(
                f"block table of {first + len(block_ids)} blocks exceeds {capacity}, what max_model_len needs"
            )
        if first == 0:
            self._table[row] = 0
        self._table[row, first : first + len(block_ids)] = block_ids

    def gather(self, rows: npt.NDArray[np.int64], max_context_tokens: int) -> npt.NDArray[np.int64]:
        """[len(rows), blocks of the longest context] copy."""
        return self._table[rows, : -(-max_context_tokens // self._block_size)]

    def slots(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """block_id * block_size + offset of each (row, position)."""
        blocks, offsets = np.divmod(positions, self._block_size)
        return self._table[rows, blocks] * self._block_size + offsets

    def check(self, assigned: set[int]) -> None:
        """Assert that every row is free or one of `assigned`, and free rows are empty."""
        assert len(self._free) == len(set(self._free))
        assert assigned.isdisjoint(self._free)
        assert assigned | set(self._free) == set(range(len(self._table)))
        assert not self._table[self._free].any()
