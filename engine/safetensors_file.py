"""A safetensors file as a source of tensors. Reading it runs no code, whatever it holds."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.file_pieces import FilePieces
from engine.model_error import ModelFileError, UnsupportedModelError

SUPPORTED_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class SafetensorsFile:
    """One file, open until `close`.

    The library checks the header (sizes, overlaps, the file's length); the numbers are read at the offsets in it, in
    pieces, where the library would map the file.
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError: missing, truncated or no safetensors file."""
        self.name = str(path)
        self._pieces = FilePieces(path)
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError, RuntimeError) as error:  # RuntimeError: torch cannot map it
            self._pieces.close()
            raise ModelFileError(f"{path}: truncated or damaged, or not a safetensors file ({error})") from error
        (header_bytes,) = struct.unpack("<Q", self._pieces.read(0, 8))
        header: dict[str, Any] = json.loads(self._pieces.read(8, header_bytes))
        header.pop("__metadata__", None)
        self._header = header
        self._data_start_bytes = 8 + header_bytes
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tuple(entry["shape"]) for name, entry in header.items()}
        self.number_formats: Mapping[str, str] = {name: str(entry["dtype"]) for name, entry in header.items()}

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_rows`; as stored."""
        stored = self.read_stored(tensor, start, stop).flatten()
        return stored.view(SUPPORTED_TYPES[self.number_formats[tensor]]).view(stop - start, *self.shapes[tensor][1:])

    def read_stored(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_stored`."""
        entry = self._header[tensor]
        if entry["dtype"] not in SUPPORTED_TYPES:
            raise UnsupportedModelError(
                f"{self.name}: {tensor} is stored as {entry['dtype']}; supported are {', '.join(SUPPORTED_TYPES)}"
            )
        begin, end = entry["data_offsets"]
        row_bytes = (end - begin) // self.shapes[tensor][0]
        piece = self._pieces.read(self._data_start_bytes + begin + start * row_bytes, (stop - start) * row_bytes)
        return torch.frombuffer(piece, dtype=torch.uint8).view(stop - start, row_bytes)

    def close(self) -> None:
        """As `TensorSource.close`."""
        self._pieces.close()
