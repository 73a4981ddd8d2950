"""A file of named tensors, read in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class TensorSource(Protocol):
    """Open until `close`; never holds a whole tensor in memory of its own."""

    @property
    def name(self) -> str:
        """For messages: the file."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every tensor in the file, outermost axis first."""

    @property
    def number_formats(self) -> Mapping[str, str]:
        """How each tensor is stored, as GGUF calls it: "F32", "F16", "BF16", "Q4_K", ..."""

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """Rows start..stop-1 along the first axis in some float dtype, as a tensor of its own.

        Raises:
            ModelFileError: the data cannot be read.
            UnsupportedModelError: the tensor's number format is not supported.
        """

    def read_stored(self, tensor: str, start: int, stop: int) -> Tensor:
        """The same rows as the file holds them: [stop - start, bytes of a row] uint8, a tensor of its own.

        Raises:
            ModelFileError, UnsupportedModelError: as `read_rows`.
        """

    def close(self) -> None:
        """Give the file back; idempotent."""
