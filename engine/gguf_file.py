"""A GGUF file as a source of tensors, read in pieces: as stored, or dequantised."""

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
from kernels.quantised.block_type import BLOCK_TYPES

PLAIN_TYPES = ("F32", "F16", "BF16")
RARE_TYPES = (
    *("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_S", "IQ1_M"),
    *("TQ1_0", "TQ2_0", "MXFP4"),
)
"""Only ever dequantised: no product takes them as they are stored."""
SUPPORTED_TYPES = (*PLAIN_TYPES, *BLOCK_TYPES, *RARE_TYPES)


class GGUFFile:
    """One file, open until `close`."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError or UnsupportedModelError: see `read_gguf_header`."""
        self.name = str(path)
        self.header: GGUFHeader = read_gguf_header(path)
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tensor.shape for name, tensor in self.header.tensors.items()
        }
        self.number_formats: Mapping[str, str] = {
            name: tensor.type_name for name, tensor in self.header.tensors.items()
        }
        self._pieces = FilePieces(path)

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_rows`; float32."""
        place = self.header.tensors[tensor]
        is_vector = len(place.shape) == 1  # gguf takes a vector as one row of blocks
        packed = self.read_stored(tensor, *((0, 1) if is_vector else (start, stop))).numpy()
        with np.errstate(all="ignore"):  # a damaged scale may be infinite: that shows in the logits, not as a warning
            rows = torch.from_numpy(np.asarray(dequantize(packed, place.quantization), dtype=np.float32))
        return rows[0, start:stop] if is_vector else rows.view(-1, *place.shape[1:])

    def read_stored(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_stored`; a vector is one row."""
        place = self.header.tensors[tensor]
        if place.type_name not in SUPPORTED_TYPES:
            raise UnsupportedModelError(
                f"{self.name}: {tensor} is stored as {place.type_name}; supported are {', '.join(SUPPORTED_TYPES)}"
            )
        row_bytes = place.num_bytes // (place.shape[0] if len(place.shape) > 1 else 1)
        piece = self._pieces.read(place.offset_bytes + start * row_bytes, (stop - start) * row_bytes)
        return torch.frombuffer(piece, dtype=torch.uint8).view(stop - start, row_bytes)

    def close(self) -> None:
        """As `TensorSource.close`."""
        self._pieces.close()
