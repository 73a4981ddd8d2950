"""A GGUF file as a source of tensors, dequantised in pieces as they are read."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from engine.gguf_header import GGUFHeader, parse_gguf_header
from engine.model_error import ModelFileError, UnsupportedModelError

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


class GGUFFile:
    """One file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError or UnsupportedModelError: see `parse_gguf_header`; also a missing file."""
        self.name = str(path)
        try:
            with path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise ModelFileError(f"{path}: cannot be read ({error})") from error
        self.header: GGUFHeader = parse_gguf_header(self._data, path)
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tensor.shape for name, tensor in self.header.tensors.items()
        }

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_rows`; float32."""
        place = self.header.tensors[tensor]
        if place.type_name not in SUPPORTED_TYPES:
            raise UnsupportedModelError(
                f"{self.name}: {tensor} is stored as {place.type_name}; supported are {', '.join(SUPPORTED_TYPES)}"
            )
        num_rows = place.shape[0] if len(place.shape) > 1 else 1  # gguf takes a vector as one row of blocks
        row_bytes = place.num_bytes // num_rows
        first, last = (start, stop) if len(place.shape) > 1 else (0, 1)
        begin, end = (place.offset_bytes + row * row_bytes for row in (first, last))
        packed = np.frombuffer(self._data[begin:end], np.uint8).reshape(last - first, row_bytes)
        rows = torch.from_numpy(np.array(dequantize(packed, place.quantization), dtype=np.float32))
        return rows.view(-1, *place.shape[1:]) if len(place.shape) > 1 else rows[0, start:stop]

    def close(self) -> None:
        """As `TensorSource.close`; the mapping ends with the last view of it."""
        self._data = memoryview(b"")
