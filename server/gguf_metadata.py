"""The key-value section of a GGUF file, read without touching its tensors.

The `gguf` library builds numpy objects for each of the 100 000 strings of a vocabulary and needs 2 s for what takes
0.1 s here. Source: the GGUF specification, versions 2 and 3 (ggml, docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

from server.tokenizer_parts import TokenizerError

GGUFValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

_MAGIC = int.from_bytes(b"GGUF", "little")
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<IIQQ")
_TYPE = struct.Struct("<I")


class _Cursor:
    """A position in the mapped file; every read is checked against its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        values: tuple[int, ...] = layout.unpack(self._take(layout.size))
        return values

    def string(self) -> str:
        return self._take(self.unpack(_LENGTH)[0]).decode("utf-8", errors="replace")

    def value(self, kind: int) -> GGUFValue:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        scalar: int | float | bool = self._scalars(kind, 1)[0]
        return scalar

    def _array(self) -> GGUFValue:
        kind, count = self.unpack(_TYPE)[0], self.unpack(_LENGTH)[0]
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        return self._scalars(kind, count)

    def _scalars(self, kind: int, count: int) -> list[int]:
        if kind not in _SCALARS:
            raise TokenizerError(f"metadata value of unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        values: list[int] = np.frombuffer(self._take(count * dtype.itemsize), dtype=dtype).tolist()
        return values

    def _take(self, size: int) -> bytes:
        end = self._offset + size
        if end > len(self._data):
            raise TokenizerError(f"the file ends at byte {len(self._data)}, a value at {self._offset} needs {size}")
        taken = self._data[self._offset : end]
        self._offset = end
        return taken


def read_gguf_metadata(path: Path) -> dict[str, GGUFValue]:
    """All keys and values of a little-endian GGUF file of version 2 or 3.

    Raises:
        TokenizerError: the file is no such GGUF, or is cut short.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size < _HEADER.size:
            raise TokenizerError(f"{path}: too short for a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(_Cursor(data))
            except TokenizerError as error:
                raise TokenizerError(f"{path}: not a readable GGUF file: {error}") from error


def _read(cursor: _Cursor) -> dict[str, GGUFValue]:
    magic, version, _, num_values = cursor.unpack(_HEADER)
    if magic != _MAGIC:
        raise TokenizerError(f"it starts with {magic.to_bytes(4, 'little')!r}, not b'GGUF'")
    if version not in _VERSIONS:
        raise TokenizerError(f"version {version} (or big-endian), known are the little-endian versions {_VERSIONS}")
    metadata: dict[str, GGUFValue] = {}
    for _ in range(num_values):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.unpack(_TYPE)[0])
    return metadata
