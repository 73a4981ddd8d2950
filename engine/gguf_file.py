"""A GGUF file as a source of tensors, dequantised in pieces as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from gguf.quants import dequantize
from torch import Tensor

from engine.file_pieces import FilePieces
from engine.gguf_header import GGUFHeader, read_gguf_header
from engine.model_error import UnsupportedModelError

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


class GGUFFile:
    """One file, open until `close`."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError or UnsupportedModelError: see `read_gguf_header`."""
        self.name = str(path)
        self.header: GGUFHeader = read_gguf_header(path)
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tensor.shape for name, tensor in self.header.tensors.items()
        }
        self._pieces = FilePieces(path)

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_rows`; float32."""
        place = self.header.tensors[tensor]
        if place.type_name not in SUPPORTED_TYPES:
            raise UnsupportedModelError(
                f"{self.name}: {tensor} is stored as {place.type_name}; supported are {', '.join(SUPPORTED_TYPES)}"
            )
        is_vector = len(place.shape) == 1  # gguf takes a vector as one row of blocks
        num_rows, first, last = (1, 0, 1) if is_vector else (place.shape[0], start, stop)
        row_bytes = place.num_bytes // num_rows
        piece = self._pieces.read(place.offset_bytes + first * row_bytes, (last - first) * row_bytes)
        packed = np.frombuffer(piece, np.uint8).reshape(last - first, row_bytes)
        with np.errstate(all="ignore"):  # a damaged scale may be infinite: that shows in the logits, not as a warning
            rows = torch.from_numpy(np.asarray(dequantize(packed, place.quantization), dtype=np.float32))
        return rows[0, start:stop] if is_vector else rows.view(-1, *place.shape[1:])

    def close(self) -> None:
        """As `TensorSource.close`."""
        self._pieces.close()
