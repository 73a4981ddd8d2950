"""Where the matrices of one decoder layer lie in its slab.

A slab holds all matrices of a layer in the form they are multiplied in, back to back, each at a multiple of 256 bytes.
The layout is the same for every buffer the slab may be copied to; views are made over whichever one it is in.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from engine.model_config import ModelConfig
from kernels.linear import WeightFormat

ALIGNMENT_BYTES = 256


@dataclasses.dataclass(frozen=True, slots=True)
class MatrixPlace:
    """One matrix in the slab. Matrices that share their input lie row after row as one, to be multiplied at once."""

    out_features: int
    in_features: int
    offset_bytes: int
    num_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class LayerMatrices:
    """Views of a slab, each in the form of `WeightFormat.view`."""

    qkv: Tensor
    """Query, key and value rows, in that order."""
    output: Tensor
    gate_up: Tensor
    """Gate rows, then up rows."""
    down: Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class LayerLayout:
    """The four matrices' places and the slab's size."""

    weight_format: WeightFormat
    qkv: MatrixPlace
    output: MatrixPlace
    gate_up: MatrixPlace
    down: MatrixPlace
    num_bytes: int

    def views(self, slab: Tensor) -> LayerMatrices:
        """Views over `slab` [num_bytes] uint8."""
        return LayerMatrices(
            *(
                self.weight_format.view(matrix_bytes(slab, place), place.out_features, place.in_features)
                for place in (self.qkv, self.output, self.gate_up, self.down)
            )
        )


def layer_layout(config: ModelConfig, weight_format: WeightFormat) -> LayerLayout:
    """The layout of every layer of a model."""
    shapes = (
        (config.query_size + 2 * config.kv_size, config.hidden_size),
        (config.hidden_size, config.query_size),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
    )
    places: list[MatrixPlace] = []
    offset = 0
    for out_features, in_features in shapes:
        num_bytes = out_features * weight_format.row_bytes(in_features)
        places.append(MatrixPlace(out_features, in_features, offset, num_bytes))
        offset += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    qkv, output, gate_up, down = places
    return LayerLayout(weight_format, qkv, output, gate_up, down, num_bytes=offset)


def matrix_bytes(slab: Tensor, place: MatrixPlace) -> Tensor:
    """[num_bytes] uint8 view."""
    return slab[place.offset_bytes : place.offset_bytes + place.num_bytes]


def allocate_aligned(num_bytes: int) -> Tensor:
    """[num_bytes] uint8, uninitialised, starting at a multiple of 256 bytes."""
    buffer = torch.empty(num_bytes + ALIGNMENT_BYTES, dtype=torch.uint8)
    start = -buffer.data_ptr() % ALIGNMENT_BYTES
    return buffer[start : start + num_bytes]
