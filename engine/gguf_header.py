"""The head of a GGUF file: its metadata and where each tensor lies.

Read here and not through gguf's own reader because that one trusts the file (a damaged count makes it loop without
end) and builds an array object per token of the vocabulary (1.7 s and 40 MB for 49,152 tokens). Number formats, their
block sizes and dequantisation are the gguf package's. Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from engine.model_error import ModelFileError, UnsupportedModelError

GGUFValue = int | float | bool | str | list[Any]

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT_BYTES = 32
MAX_DIMENSIONS = 4
MAX_NESTING = 4
"""Arrays within arrays."""
_SCALARS: Mapping[GGUFValueType, str] = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor's place."""

    name: str
    shape: tuple[int, ...]
    """Outermost axis first, the reverse of the file's order."""
    type_name: str
    """As ggml calls it, e.g. "Q4_1"."""
    offset_bytes: int
    """From the start of the file."""
    num_bytes: int

    @property
    def quantization(self) -> GGMLQuantizationType:
        return GGMLQuantizationType[self.type_name]


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything in the file but the numbers."""

    metadata: Mapping[str, GGUFValue]
    tensors: Mapping[str, GGUFTensor]


def read_gguf_header(path: Path) -> GGUFHeader:
    """The metadata and tensor places of a file; the numbers are not touched.

    Raises:
        ModelFileError: missing, no GGUF file, truncated or damaged.
        UnsupportedModelError: another version, byte order or an unknown number format.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ModelFileError(f"{path}: cannot be read ({error})") from error
    return parse_gguf_header(memoryview(data), path)  # the mapping ends with the last view of it


def parse_gguf_header(data: memoryview, path: Path) -> GGUFHeader:
    """Parse the whole file's bytes; only the head is touched.

    Raises:
        ModelFileError: no GGUF file, truncated or damaged.
        UnsupportedModelError: another version, byte order or an unknown number format.
    """
    cursor = _Cursor(data, path)
    if bytes(data[:4]) != MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file: it starts with {bytes(data[:4])!r}, expected {MAGIC!r}")
    cursor.position = 4
    version = cursor.integer(4)
    if version & 0xFFFF == 0 and version:
        raise UnsupportedModelError(f"{path}: big-endian GGUF; convert it to little-endian")
    if version not in SUPPORTED_VERSIONS:
        raise UnsupportedModelError(f"{path}: GGUF version {version}; supported are {SUPPORTED_VERSIONS}")
    num_tensors, num_values = cursor.integer(8), cursor.integer(8)
    metadata: dict[str, GGUFValue] = {}
    for _ in range(num_values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.integer(4))
    records = [_read_tensor_record(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelFileError(f"{path}: general.alignment is {alignment!r}, expected a positive integer")
    data_start = -(-cursor.position // alignment) * alignment
    return GGUFHeader(metadata, _place_tensors(records, data_start, len(data), path))


@dataclasses.dataclass(frozen=True, slots=True)
class _TensorRecord:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset_bytes: int


def _read_tensor_record(cursor: _Cursor) -> _TensorRecord:
    name = cursor.text()
    num_dimensions = cursor.integer(4)
    if num_dimensions > MAX_DIMENSIONS:
        raise cursor.damaged(f"tensor {name} has {num_dimensions} dimensions, at most {MAX_DIMENSIONS} are possible")
    dimensions = [cursor.integer(8) for _ in range(num_dimensions)]
    return _TensorRecord(name, tuple(reversed(dimensions)), cursor.integer(4), cursor.integer(8))


def _place_tensors(records: list[_TensorRecord], start: int, end: int, path: Path) -> dict[str, GGUFTensor]:
    tensors: dict[str, GGUFTensor] = {}
    for record in records:
        if record.name in tensors:
            raise ModelFileError(f"{path}: tensor {record.name} is there twice")
        try:
            kind = GGMLQuantizationType(record.type_id)
        except ValueError as error:
            raise UnsupportedModelError(f"{path}: {record.name} has number format {record.type_id}, unknown") from error
        block_elements, block_bytes = GGML_QUANT_SIZES[kind]
        if record.shape and record.shape[-1] % block_elements:
            raise ModelFileError(
                f"{path}: {record.name} has rows of {record.shape[-1]} numbers; "
                f"{kind.name} needs a multiple of {block_elements}"
            )
        num_bytes = math.prod(record.shape) // block_elements * block_bytes
        offset = start + record.offset_bytes
        if offset + num_bytes > end:
            raise ModelFileError(
                f"{path}: truncated: {record.name} should end at byte {offset + num_bytes}, the file has {end}"
            )
        tensors[record.name] = GGUFTensor(record.name, record.shape, kind.name, offset, num_bytes)
    return tensors


class _Cursor:
    """A place in the file; every read is checked against its end, so that a damaged count ends at once."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self._path}: damaged GGUF header before byte {self.position}: {what}")

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes."""
        end = self.position + num_bytes
        if end > len(self._data):
            raise ModelFileError(
                f"{self._path}: truncated GGUF header: {num_bytes} bytes expected at byte {self.position}, "
                f"the file has {len(self._data)}"
            )
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def integer(self, num_bytes: int) -> int:
        """An unsigned integer of 4 or 8 bytes."""
        value: int = struct.unpack("<I" if num_bytes == 4 else "<Q", self.take(num_bytes))[0]
        return value

    def text(self) -> str:
        """A name; must be UTF-8."""
        try:
            return str(self.take(self.integer(8)), "utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"a name is not UTF-8 ({error})") from error

    def value(self, type_id: int, depth: int = 0) -> GGUFValue:
        """A metadata value."""
        try:
            kind = GGUFValueType(type_id)
        except ValueError as error:
            raise self.damaged(f"unknown value type {type_id}") from error
        if kind == GGUFValueType.STRING:
            return self._string()
        if kind == GGUFValueType.ARRAY:
            return self._array(depth)
        number: int | float | bool = self._numbers(kind, 1)[0]
        return number

    def _string(self) -> str:
        """Text that is not UTF-8 keeps its readable part."""
        return str(self.take(self.integer(8)), "utf-8", "replace")

    def _array(self, depth: int) -> list[Any]:
        if depth == MAX_NESTING:
            raise self.damaged(f"arrays are nested more than {MAX_NESTING} deep")
        type_id, length = self.integer(4), self.integer(8)
        if type_id == GGUFValueType.STRING:
            return [self._string() for _ in range(length)]
        if type_id == GGUFValueType.ARRAY:
            return [self.value(type_id, depth + 1) for _ in range(length)]
        try:
            kind = GGUFValueType(type_id)
        except ValueError as error:
            raise self.damaged(f"unknown value type {type_id} of an array") from error
        return self._numbers(kind, length)

    def _numbers(self, kind: GGUFValueType, count: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        values: list[Any] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values
