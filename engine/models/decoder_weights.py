"""The numbers of a decoder: one slab a layer, embedding, head and the small vectors apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from engine.layers.layer_layout import LayerLayout, MatrixPlace, allocate_aligned, layer_layout, matrix_bytes
from engine.model_config import ModelConfig
from kernels.linear import DenseFormat, WeightFormat


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One named tensor of a checkpoint, and the bytes it is packed into. Written at load, never after."""

    name: str
    """Ours: see `engine.models.tensor_names`."""
    shape: tuple[int, ...]
    weight_format: WeightFormat
    data: Tensor
    """uint8 view, `shape[0]` rows."""

    @property
    def row_bytes(self) -> int:
        return len(self.data) // self.shape[0]

    def write(self, first_row: int, rows: Tensor) -> None:
        """Pack rows [R, ...] of any float dtype from `first_row` on."""
        start, end = first_row * self.row_bytes, (first_row + len(rows)) * self.row_bytes
        self.weight_format.pack(rows, self.data[start:end])


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer. The slab may be streamed; norms and biases are a few kilobytes and stay."""

    slab: Tensor
    """[layout.num_bytes] uint8."""
    attention_norm: Tensor
    """[hidden]."""
    mlp_norm: Tensor
    """[hidden]."""
    qkv_bias: Tensor | None
    output_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None


@dataclasses.dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Allocated uninitialised by `allocate_weights`, filled through `parameters`."""

    layout: LayerLayout
    embedding: Tensor
    """[vocab, hidden]."""
    head: Tensor
    """[vocab, hidden]; the embedding itself where they are tied."""
    final_norm: Tensor
    """[hidden]."""
    layers: tuple[LayerWeights, ...]

    @property
    def num_bytes(self) -> int:
        """Of everything, a tied head counted once."""
        tensors = [self.embedding, self.final_norm]
        if self.head is not self.embedding:
            tensors.append(self.head)
        for layer in self.layers:
            vectors = (layer.attention_norm, layer.mlp_norm, layer.qkv_bias, layer.output_bias, layer.gate_up_bias)
            tensors += [layer.slab, *(vector for vector in (*vectors, layer.down_bias) if vector is not None)]
        return sum(tensor.nbytes for tensor in tensors)


def allocate_weights(config: ModelConfig, dtype: torch.dtype) -> DecoderWeights:
    """Memory for a decoder of plain numbers."""
    layout = layer_layout(config, DenseFormat(dtype))
    vocab_shape = (config.vocab_size, config.hidden_size)
    embedding = torch.empty(vocab_shape, dtype=dtype)
    return DecoderWeights(
        layout=layout,
        embedding=embedding,
        head=embedding if config.tie_word_embeddings else torch.empty(vocab_shape, dtype=dtype),
        final_norm=torch.empty(config.hidden_size, dtype=dtype),
        layers=tuple(_allocate_layer(config, layout, dtype) for _ in range(config.num_layers)),
    )


def _allocate_layer(config: ModelConfig, layout: LayerLayout, dtype: torch.dtype) -> LayerWeights:
    def bias(is_there: bool, place: MatrixPlace) -> Tensor | None:
        return torch.empty(place.out_features, dtype=dtype) if is_there else None

    return LayerWeights(
        slab=allocate_aligned(layout.num_bytes),
        attention_norm=torch.empty(config.hidden_size, dtype=dtype),
        mlp_norm=torch.empty(config.hidden_size, dtype=dtype),
        qkv_bias=bias(config.attention_bias, layout.qkv),
        output_bias=bias(config.attention_output_bias, layout.output),
        gate_up_bias=bias(config.mlp_bias, layout.gate_up),
        down_bias=bias(config.mlp_bias, layout.down),
    )


def parameters(config: ModelConfig, weights: DecoderWeights) -> Iterator[Parameter]:
    """Every tensor that a checkpoint must have, in the order of use."""
    yield _plain("embedding", weights.embedding)
    for index, layer in enumerate(weights.layers):
        yield from _layer_parameters(config, weights.layout, layer, f"layers.{index}.")
    yield _plain("final_norm", weights.final_norm)
    if weights.head is not weights.embedding:
        yield _plain("head", weights.head)


def _layer_parameters(
    config: ModelConfig, layout: LayerLayout, layer: LayerWeights, prefix: str
) -> Iterator[Parameter]:
    qkv_rows = {"query": config.query_size, "key": config.kv_size, "value": config.kv_size}
    gate_up_rows = {"gate": config.intermediate_size, "up": config.intermediate_size}
    groups = (
        (qkv_rows, layout.qkv, layer.qkv_bias),
        ({"output": config.hidden_size}, layout.output, layer.output_bias),
        (gate_up_rows, layout.gate_up, layer.gate_up_bias),
        ({"down": config.hidden_size}, layout.down, layer.down_bias),
    )
    yield _plain(f"{prefix}attention_norm", layer.attention_norm)
    yield _plain(f"{prefix}mlp_norm", layer.mlp_norm)
    for rows_by_name, place, bias in groups:
        row_bytes = layout.weight_format.row_bytes(place.in_features)
        data, first = matrix_bytes(layer.slab, place), 0
        for name, rows in rows_by_name.items():
            part = data[first * row_bytes : (first + rows) * row_bytes]
            yield Parameter(f"{prefix}{name}", (rows, place.in_features), layout.weight_format, part)
            if bias is not None:
                yield _plain(f"{prefix}{name}_bias", bias[first : first + rows])
            first += rows


def _plain(name: str, tensor: Tensor) -> Parameter:
    """A tensor of plain numbers outside the slabs."""
    return Parameter(name, tuple(tensor.shape), DenseFormat(tensor.dtype), tensor.view(torch.uint8).flatten())
