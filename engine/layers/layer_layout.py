"""Where the matrices of one decoder layer lie in its slab.

A slab holds all matrices of a layer in the form they are multiplied in, back to back. The layout is the same for every
buffer the slab may be copied to; matrices are made over whichever one it is in. It may be cut in two where a group of
matrices begins.

Query, key and value share their input, as gate and up do. Where neighbours of such a group have one format and end at
whole tiles they lie as one matrix, to be multiplied at once; otherwise each starts at a multiple of 256 bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from engine.layers.slab import Slab
from engine.model_config import ModelConfig
from kernels.linear import WeightFormat, packed_bytes
from kernels.packed_matrix import PackedMatrix

ALIGNMENT_BYTES = 256


@dataclasses.dataclass(frozen=True, slots=True)
class LayerFormats:
    """How each matrix of a layer is packed."""

    query: WeightFormat
    key: WeightFormat
    value: WeightFormat
    output: WeightFormat
    gate: WeightFormat
    up: WeightFormat
    down: WeightFormat

    @staticmethod
    def uniform(weight_format: WeightFormat) -> LayerFormats:
        """One format for all."""
        return LayerFormats(*(weight_format,) * len(dataclasses.fields(LayerFormats)))


@dataclasses.dataclass(frozen=True, slots=True)
class MatrixPlace:
    """One matrix in the slab."""

    weight_format: WeightFormat
    out_features: int
    in_features: int
    offset_bytes: int

    @property
    def num_bytes(self) -> int:
        return packed_bytes(self.weight_format, self.out_features, self.in_features)

    def over(self, slab: Slab) -> PackedMatrix:
        """The matrix in `slab`."""
        data = slab.part(self.offset_bytes, self.num_bytes)
        return PackedMatrix(self.weight_format, self.out_features, self.in_features, data)


@dataclasses.dataclass(frozen=True, slots=True)
class LayerMatrices:
    """Over a slab. Results of the matrices of a group lie side by side."""

    qkv: tuple[PackedMatrix, ...]
    """Query, key and value rows, in that order; as few matrices as their formats allow."""
    output: tuple[PackedMatrix, ...]
    gate_up: tuple[PackedMatrix, ...]
    """Gate rows, then up rows."""
    down: tuple[PackedMatrix, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerLayout:
    """The seven matrices' places and the slab's size."""

    query: MatrixPlace
    key: MatrixPlace
    value: MatrixPlace
    output: MatrixPlace
    gate: MatrixPlace
    up: MatrixPlace
    down: MatrixPlace
    num_bytes: int

    def matrices(self, slab: Slab) -> LayerMatrices:
        """Over `slab` of num_bytes, not cut between gate and up."""
        return LayerMatrices(
            self.qkv(slab), (self.output.over(slab),), _over(slab, self.gate, self.up), (self.down.over(slab),)
        )

    def qkv(self, slab: Slab) -> tuple[PackedMatrix, ...]:
        """Query, key and value rows over `slab`, in as few matrices as their formats allow."""
        return _over(slab, self.query, self.key, self.value)

    @property
    def can_split_gate(self) -> bool:
        """Whether the slab may be cut between gate and up: native kernels alone read them one by one."""
        is_native = self.up.weight_format.native_code is not None
        return is_native and self.up.offset_bytes % ALIGNMENT_BYTES == 0

    def part_bytes(self, splits_gate: bool) -> tuple[int, ...]:
        """Bytes from one place where the slab may be cut to the next, in their order; `num_bytes` together."""
        places = (self.query, self.output, self.gate, *([self.up] if splits_gate else []), self.down)
        starts = [place.offset_bytes for place in places]
        return tuple(end - start for start, end in zip(starts, [*starts[1:], self.num_bytes], strict=True))


def aligned(num_bytes: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def layer_layout(config: ModelConfig, formats: LayerFormats) -> LayerLayout:
    """The layout of a layer."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    groups = (
        ((formats.query, config.query_size), (formats.key, config.kv_size), (formats.value, config.kv_size)),
        ((formats.output, hidden),),
        ((formats.gate, intermediate), (formats.up, intermediate)),
        ((formats.down, hidden),),
    )
    places: list[MatrixPlace] = []
    offset = 0
    for group, in_features in zip(groups, (hidden, config.query_size, hidden, intermediate), strict=True):
        for index, (weight_format, out_features) in enumerate(group):
            if index == 0 or not _continues(places[-1], weight_format):
                offset = aligned(offset)
            places.append(MatrixPlace(weight_format, out_features, in_features, offset))
            offset += places[-1].num_bytes
    query, key, value, output, gate, up, down = places
    return LayerLayout(query, key, value, output, gate, up, down, aligned(offset))


def _continues(place: MatrixPlace, weight_format: WeightFormat) -> bool:
    """Whether rows of `weight_format` may follow as rows of the same matrix."""
    return place.weight_format == weight_format and place.out_features % weight_format.tile_rows == 0


def _over(slab: Slab, *group: MatrixPlace) -> tuple[PackedMatrix, ...]:
    return tuple(place.over(slab) for place in _joined(group))


def _joined(group: Sequence[MatrixPlace]) -> list[MatrixPlace]:
    """Neighbours that `_continues` as one."""
    joined = [group[0]]
    for place in group[1:]:
        last = joined[-1]
        if _continues(last, place.weight_format):
            joined[-1] = dataclasses.replace(last, out_features=last.out_features + place.out_features)
        else:
            joined.append(place)
    return joined
