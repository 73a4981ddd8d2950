"""The numbers of a decoder: one slab a layer, embedding, head and the small vectors apart."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from engine.layers.layer_layout import LayerFormats, LayerLayout, MatrixPlace, aligned, layer_layout
from engine.layers.slab import Slab
from engine.model_config import ModelConfig
from engine.models.weights_placement import WeightSizes, WeightsPlacement
from kernels.linear import DenseFormat, WeightFormat, packed_bytes
from kernels.packed_matrix import PackedMatrix


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderFormats:
    """How each matrix of a decoder is packed, and of what type everything else is."""

    layers: tuple[LayerFormats, ...]
    embedding: WeightFormat
    head: WeightFormat
    """Not used where head and embedding are tied."""
    norms: torch.dtype
    biases: torch.dtype

    @staticmethod
    def uniform(config: ModelConfig, weight_format: WeightFormat, vectors: torch.dtype) -> DecoderFormats:
        """One format for all matrices."""
        layers = (LayerFormats.uniform(weight_format),) * config.num_layers
        return DecoderFormats(layers, weight_format, weight_format, vectors, vectors)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One named tensor of a checkpoint, and the bytes it is packed into. Written at load, never after."""

    name: str
    """Ours: see `engine.models.tensor_names`."""
    shape: tuple[int, ...]
    weight_format: WeightFormat
    data: Tensor
    """uint8 view, whole tiles."""

    def tiles(self, first_row: int, num_rows: int) -> Tensor:
        """The bytes of `num_rows` rows from `first_row`, the first of a tile, on."""
        tile_rows = self.weight_format.tile_rows
        tile_bytes = len(self.data) // -(-self.shape[0] // tile_rows)
        first, end = first_row // tile_rows, -(-(first_row + num_rows) // tile_rows)
        return self.data[first * tile_bytes : end * tile_bytes]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer. The slab may be streamed; norms and biases are a few kilobytes and stay."""

    layout: LayerLayout
    slab: Slab
    """Of layout.num_bytes, where it was loaded; a decoder reads it where `LayerAccess` says."""
    attention_norm: Tensor
    """[hidden]."""
    mlp_norm: Tensor
    """[hidden]."""
    post_attention_norm: Tensor | None
    """[hidden]."""
    post_mlp_norm: Tensor | None
    """[hidden]."""
    query_norm: Tensor | None
    """[head dim]."""
    key_norm: Tensor | None
    """[head dim]."""
    qkv_bias: Tensor | None
    output_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None

    @property
    def norms(self) -> dict[str, Tensor]:
        """Those that the layer has, by our name."""
        norms = {
            "attention_norm": self.attention_norm,
            "query_norm": self.query_norm,
            "key_norm": self.key_norm,
            "post_attention_norm": self.post_attention_norm,
            "mlp_norm": self.mlp_norm,
            "post_mlp_norm": self.post_mlp_norm,
        }
        return {name: norm for name, norm in norms.items() if norm is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Made uninitialised by `make_weights`, filled through `parameters`."""

    embedding: PackedMatrix
    """[vocab, hidden]."""
    head: PackedMatrix
    """[vocab, hidden]; the embedding itself where they are tied."""
    final_norm: Tensor
    """[hidden]."""
    layers: tuple[LayerWeights, ...]

    @property
    def num_bytes(self) -> int:
        """Of everything, a tied head counted once."""
        tensors = [self.embedding.data, self.final_norm]
        if self.head is not self.embedding:
            tensors.append(self.head.data)
        for layer in self.layers:
            biases = (layer.qkv_bias, layer.output_bias, layer.gate_up_bias, layer.down_bias)
            tensors += [layer.slab.head, layer.slab.tail, *layer.norms.values()]
            tensors += [bias for bias in biases if bias is not None]
        return sum(tensor.nbytes for tensor in tensors)

    @property
    def bytes_by_format(self) -> dict[str, int]:
        """Of all matrices, by the name of their format."""
        sizes: Counter[str] = Counter()
        for parameter in parameters(self):
            if len(parameter.shape) == 2:
                sizes[parameter.weight_format.name] += len(parameter.data)
        return dict(sizes)


def weight_sizes(config: ModelConfig, formats: DecoderFormats) -> WeightSizes:
    """What a decoder takes."""
    layouts = _layouts(config, formats)
    num_bytes = 0

    def count(size: int) -> Tensor:
        nonlocal num_bytes
        num_bytes += aligned(size)
        return torch.empty(size, dtype=torch.uint8, device="meta")

    slabs = [Slab.whole(torch.empty(layout.num_bytes, dtype=torch.uint8, device="meta")) for layout in layouts]
    _make(config, formats, layouts, slabs, count)
    return WeightSizes(num_bytes, tuple(layouts))


def make_weights(config: ModelConfig, formats: DecoderFormats, placement: WeightsPlacement) -> DecoderWeights:
    """A decoder's weights in the memory of `placement`, made for its `weight_sizes`; not written yet."""
    fixed, start = placement.fixed, 0

    def take(size: int) -> Tensor:
        nonlocal start
        part = fixed[start : start + size]
        start += aligned(size)
        return part

    return _make(config, formats, _layouts(config, formats), placement.slabs, take)


def _make(
    config: ModelConfig,
    formats: DecoderFormats,
    layouts: Sequence[LayerLayout],
    slabs: Sequence[Slab],
    take: Callable[[int], Tensor],
) -> DecoderWeights:
    """`take` gives the memory of everything but the slabs, [n] uint8 each."""
    shape = (config.vocab_size, config.hidden_size)

    def matrix(weight_format: WeightFormat) -> PackedMatrix:
        return PackedMatrix(weight_format, *shape, take(packed_bytes(weight_format, *shape)))

    def vector(width: int, dtype: torch.dtype) -> Tensor:
        return take(width * dtype.itemsize).view(dtype)

    embedding = matrix(formats.embedding)
    return DecoderWeights(
        embedding=embedding,
        head=embedding if config.tie_word_embeddings else matrix(formats.head),
        final_norm=vector(config.hidden_size, formats.norms),
        layers=tuple(_layer(config, *pair, formats, vector) for pair in zip(layouts, slabs, strict=True)),
    )


def _layouts(config: ModelConfig, formats: DecoderFormats) -> list[LayerLayout]:
    """Of every layer; layers of equal formats share one."""
    made: dict[LayerFormats, LayerLayout] = {}
    return [made.setdefault(layer, layer_layout(config, layer)) for layer in formats.layers]


def _layer(
    config: ModelConfig,
    layout: LayerLayout,
    slab: Slab,
    formats: DecoderFormats,
    vector: Callable[[int, torch.dtype], Tensor],
) -> LayerWeights:
    def norm(width: int, exists: bool) -> Tensor | None:
        return vector(width, formats.norms) if exists else None

    def bias(width: int, exists: bool) -> Tensor | None:
        return vector(width, formats.biases) if exists else None

    hidden = config.hidden_size
    return LayerWeights(
        layout=layout,
        slab=slab,
        attention_norm=vector(hidden, formats.norms),
        mlp_norm=vector(hidden, formats.norms),
        post_attention_norm=norm(hidden, config.has_post_norms),
        post_mlp_norm=norm(hidden, config.has_post_norms),
        query_norm=norm(config.head_dim, config.has_head_norms),
        key_norm=norm(config.head_dim, config.has_head_norms),
        qkv_bias=bias(config.query_size + 2 * config.kv_size, config.attention_bias),
        output_bias=bias(hidden, config.attention_output_bias),
        gate_up_bias=bias(2 * config.intermediate_size, config.mlp_bias),
        down_bias=bias(hidden, config.mlp_bias),
    )


def parameters(weights: DecoderWeights) -> Iterator[Parameter]:
    """Every tensor that a checkpoint must have, in the order of use."""
    yield _matrix("embedding", weights.embedding)
    for index, layer in enumerate(weights.layers):
        yield from _layer_parameters(layer, f"layers.{index}.")
    yield _vector("final_norm", weights.final_norm)
    if weights.head is not weights.embedding:
        yield _matrix("head", weights.head)


def _layer_parameters(layer: LayerWeights, prefix: str) -> Iterator[Parameter]:
    layout = layer.layout
    groups: tuple[tuple[dict[str, MatrixPlace], Tensor | None], ...] = (
        ({"query": layout.query, "key": layout.key, "value": layout.value}, layer.qkv_bias),
        ({"output": layout.output}, layer.output_bias),
        ({"gate": layout.gate, "up": layout.up}, layer.gate_up_bias),
        ({"down": layout.down}, layer.down_bias),
    )
    for name, norm in layer.norms.items():
        yield _vector(f"{prefix}{name}", norm)
    for places, bias in groups:
        first = 0
        for name, place in places.items():
            yield _matrix(f"{prefix}{name}", place.over(layer.slab))
            if bias is not None:
                yield _vector(f"{prefix}{name}_bias", bias[first : first + place.out_features])
            first += place.out_features


def _matrix(name: str, matrix: PackedMatrix) -> Parameter:
    return Parameter(name, (matrix.out_features, matrix.in_features), matrix.weight_format, matrix.data)


def _vector(name: str, vector: Tensor) -> Parameter:
    return Parameter(name, tuple(vector.shape), DenseFormat(vector.dtype), vector.view(torch.uint8))
