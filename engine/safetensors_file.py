"""A safetensors file as a source of tensors. Reading it runs no code, whatever it holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model_error import ModelFileError, UnsupportedModelError

SUPPORTED_TYPES = ("F32", "BF16", "F16")


class SafetensorsFile:
    """One file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError: missing, truncated or no safetensors file."""
        self.name = str(path)
        self._slices: dict[str, Any]
        if not path.is_file():
            raise ModelFileError(f"{path}: no such file")
        try:
            file: Any = safe_open(path, framework="pt")
            self._slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise ModelFileError(f"{path}: truncated or damaged, or not a safetensors file ({error})") from error
        self.shapes: Mapping[str, tuple[int, ...]] = {
            key: tuple(part.get_shape()) for key, part in self._slices.items()
        }

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_rows`."""
        part = self._slices[tensor]
        number_type = part.get_dtype()
        if number_type not in SUPPORTED_TYPES:
            raise UnsupportedModelError(
                f"{self.name}: {tensor} is stored as {number_type}; supported are {', '.join(SUPPORTED_TYPES)}"
            )
        try:
            rows: Tensor = part[start:stop]
        except SafetensorError as error:
            raise ModelFileError(f"{self.name}: {tensor} cannot be read ({error})") from error
        return rows

    def close(self) -> None:
        """As `TensorSource.close`; the mapping ends with the last slice of it."""
        self._slices.clear()
