"""A GGUF file again, its matrices in other number formats."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType

from engine.gguf_header import GGUFTensor, read_gguf_header
from tests.block_quantiser import Bytes, Floats, quantise

ALIGNMENT_BYTES = 32


def requantise(source: Path, target: Path, kind_of: Callable[[GGUFTensor], GGMLQuantizationType]) -> dict[str, Floats]:
    """Write `source` with each matrix as `kind_of` says; metadata and vectors are carried over byte by byte.

    Returns:
        The numbers of all tensors as `target` stores them, by name.
    """
    data = source.read_bytes()
    tensors = read_gguf_header(source).tensors
    start = min(tensor.offset_bytes for tensor in tensors.values())
    head, numbers, offset = bytearray(data[:start]), {}, 0
    with target.open("wb") as file:
        file.write(head)
        for tensor, kind, packed in _packed(data, tensors.values(), kind_of):
            numbers[tensor.name] = gguf.quants.dequantize(packed, kind).reshape(tensor.shape)
            _write_place(head, tensor, kind, offset)
            padded = packed.tobytes() + bytes(-packed.nbytes % ALIGNMENT_BYTES)
            file.write(padded)
            offset += len(padded)
        file.seek(0)
        file.write(head)
    return numbers


def _packed(
    data: bytes, tensors: Iterable[GGUFTensor], kind_of: Callable[[GGUFTensor], GGMLQuantizationType]
) -> Iterator[tuple[GGUFTensor, GGMLQuantizationType, Bytes]]:
    for tensor in tensors:
        stored = np.frombuffer(data, np.uint8, tensor.num_bytes, tensor.offset_bytes)
        if len(tensor.shape) == 1:
            yield tensor, tensor.quantization, stored
            continue
        stored, kind = stored.reshape(tensor.shape[0], -1), kind_of(tensor)
        if kind != tensor.quantization:
            stored = quantise(gguf.quants.dequantize(stored, tensor.quantization), kind)
        yield tensor, kind, stored


def _write_place(head: bytearray, tensor: GGUFTensor, kind: GGMLQuantizationType, offset: int) -> None:
    """The record of a tensor: length of the name, name, number of axes, axes, type, offset."""
    name = tensor.name.encode()
    record = struct.pack("<Q", len(name)) + name + struct.pack("<I", len(tensor.shape))
    assert head.count(record) == 1
    place = head.index(record) + len(record) + 8 * len(tensor.shape)
    struct.pack_into("<IQ", head, place, kind, offset)
