"""Whole layers in one call against the definitions of their operations, one after the other."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.attention.base import cache_shape
from kernels.linear import packed_bytes
from kernels.native.activation import Activation
from kernels.native.attention import plan_attention
from kernels.native.layers import LayerOperands, LayerShape, LayerStack, StepKind
from kernels.native.rotary import HeadNorms, Rotation
from kernels.native.tiled_format import TiledFormat
from kernels.native_library import NativeLibrary
from kernels.packed_matrix import PackedMatrix
from tests.strided import randn

BLOCK_SIZE = 4


@dataclasses.dataclass(frozen=True)
class Options:
    is_fused: bool
    has_bias: bool
    has_post_norms: bool
    has_head_norms: bool
    activation: Activation
    soft_cap: float | None
    windows: tuple[int | None, ...]
    """Of each kind of layer."""


class Numbers:
    """Random numbers, another seed each time."""

    def __init__(self, seed: int) -> None:
        self._seeds = itertools.count(1000 * seed)

    def __call__(self, *shape: int) -> Tensor:
        return randn(next(self._seeds), *shape)


def pack(matrix: Tensor) -> PackedMatrix:
    weight_format = TiledFormat(matrix.dtype)
    data = torch.empty(packed_bytes(weight_format, *matrix.shape), dtype=torch.uint8)
    weight_format.pack(matrix, data)
    return PackedMatrix(weight_format, *matrix.shape, data)


def make_operands(shape: LayerShape, options: Options, numbers: Numbers, kind: int) -> LayerOperands:
    hidden, intermediate = shape.hidden_size, shape.intermediate_size
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim

    def matrix(rows: int, columns: int) -> PackedMatrix:
        return pack(numbers(rows, columns) / columns**0.5)

    parts = (query_size + 2 * kv_size,) if options.is_fused else (query_size, kv_size, kv_size)
    return LayerOperands(
        qkv=tuple(matrix(rows, hidden) for rows in parts),
        output=matrix(hidden, query_size),
        gate=matrix(intermediate, hidden),
        up=matrix(intermediate, hidden),
        down=matrix(hidden, intermediate),
        attention_norm=numbers(hidden),
        mlp_norm=numbers(hidden),
        qkv_bias=numbers(query_size + 2 * kv_size) if options.has_bias else None,
        output_bias=numbers(hidden) if options.has_bias else None,
        gate_up_bias=numbers(2 * intermediate) if options.has_bias else None,
        down_bias=numbers(hidden) if options.has_bias else None,
        post_attention_norm=numbers(hidden) if options.has_post_norms else None,
        post_mlp_norm=numbers(hidden) if options.has_post_norms else None,
        head_norms=HeadNorms(numbers(shape.head_dim), numbers(shape.head_dim), shape.norm_eps)
        if options.has_head_norms
        else None,
        kind=kind,
    )


@dataclasses.dataclass(frozen=True)
class Step:
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    tables: Tensor
    slots: Tensor
    positions: Tensor
    num_blocks: int


def make_step(query_lens: tuple[int, ...], cached_lens: tuple[int, ...], seed: int) -> Step:
    context_lens = tuple(q + c for q, c in zip(query_lens, cached_lens, strict=True))
    counts = [-(-length // BLOCK_SIZE) for length in context_lens]
    free = torch.randperm(sum(counts) + 1, generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [[free.pop() for _ in range(count)] for count in counts]
    tables = torch.tensor([row + [0] * (max(counts) - len(row)) for row in rows])
    positions = [torch.arange(cached, length) for cached, length in zip(cached_lens, context_lens, strict=True)]
    slots = [tables[i][place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE for i, place in enumerate(positions)]
    return Step(query_lens, context_lens, tables, torch.cat(slots), torch.cat(positions), sum(counts) + 1)


def expected_layer(
    shape: LayerShape, options: Options, layer: LayerOperands, hidden: Tensor, cache: Tensor, step: Step, theta: Tensor
) -> Tensor:
    def product(x: Tensor, matrices: tuple[PackedMatrix, ...], bias: Tensor | None) -> Tensor:
        return reference.linear(x, torch.cat([matrix.unpack() for matrix in matrices]), bias)

    def post(x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else reference.rms_norm(x, weight, shape.norm_eps)

    normed = reference.rms_norm(hidden, layer.attention_norm, shape.norm_eps)
    heads = product(normed, layer.qkv, layer.qkv_bias).view(len(hidden), -1, shape.head_dim)
    query, key, value = heads.split([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    if layer.head_norms is not None:
        query = reference.rms_norm(query, layer.head_norms.query, shape.norm_eps)
        key = reference.rms_norm(key, layer.head_norms.key, shape.norm_eps)
    query, key = (reference.rotate(x, step.positions, theta) for x in (query, key))
    reference.write_kv(key, value, cache, step.slots)
    attended = reference.paged_attention(
        query, cache, step.query_lens, step.context_lens, step.tables, shape.attention_scale,
        options.windows[layer.kind], options.soft_cap,
    )  # fmt: skip
    delta = product(attended.flatten(1), (layer.output,), layer.output_bias)
    hidden = hidden + post(delta, layer.post_attention_norm)
    normed = reference.rms_norm(hidden, layer.mlp_norm, shape.norm_eps)
    gate_up = product(normed, (layer.gate, layer.up), layer.gate_up_bias)
    definition = reference.silu_gate if options.activation is Activation.SILU else reference.gelu_tanh_gate
    delta = product(definition(gate_up), (layer.down,), layer.down_bias)
    return hidden + post(delta, layer.post_mlp_norm)


option_sets = st.builds(
    Options,
    is_fused=st.booleans(),
    has_bias=st.booleans(),
    has_post_norms=st.booleans(),
    has_head_norms=st.booleans(),
    activation=st.sampled_from(Activation),
    soft_cap=st.sampled_from([None, 20.0]),
    windows=st.sampled_from([(None,), (3,), (None, 5)]),
)


@given(
    options=option_sets,
    num_kv_heads=st.integers(1, 2),
    group=st.integers(1, 3),
    half_dim=st.integers(2, 9),
    hidden_size=st.integers(1, 40),
    intermediate_size=st.integers(1, 50),
    lens=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=4),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_layers_are_their_operations_in_order(
    library: NativeLibrary,
    options: Options,
    num_kv_heads: int,
    group: int,
    half_dim: int,
    hidden_size: int,
    intermediate_size: int,
    lens: list[tuple[int, int]],
    seed: int,
) -> None:
    shape = LayerShape(
        hidden_size, intermediate_size, num_kv_heads * group, num_kv_heads, 2 * half_dim, 1e-5, 0.3, torch.float32,
        options.soft_cap, options.activation,
    )  # fmt: skip
    numbers = Numbers(seed)
    num_layers = 3
    layers = [make_operands(shape, options, numbers, kind=i % len(options.windows)) for i in range(num_layers)]
    step = make_step(tuple(q for q, _ in lens), tuple(c for _, c in lens), seed)
    cache = numbers(*cache_shape(step.num_blocks, num_layers, BLOCK_SIZE, num_kv_heads, shape.head_dim))
    thetas = [0.1 * numbers(half_dim) for _ in options.windows]
    hidden = numbers(len(step.slots), hidden_size)
    expected, expected_cache = hidden.clone(), cache.clone()
    for index, layer in enumerate(layers):
        expected = expected_layer(shape, options, layer, expected, expected_cache[:, index], step, thetas[layer.kind])

    kinds = [
        StepKind(
            plan_attention(
                library, step.query_lens, step.context_lens, step.tables.numpy(), shape.num_heads, num_kv_heads,
                BLOCK_SIZE, window,
            ),
            Rotation.of(step.positions, theta),
        )
        for window, theta in zip(options.windows, thetas, strict=True)
    ]  # fmt: skip
    LayerStack(shape, layers).run(library, hidden, cache, step.slots, kinds)
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_refused(library: NativeLibrary) -> None:
    shape = LayerShape(8, 12, 2, 1, 4, 1e-5, 0.5, torch.float32)
    options = Options(True, False, False, False, Activation.SILU, None, (None,))
    layer = make_operands(shape, options, Numbers(0), kind=0)
    with pytest.raises(ValueError, match=r"output: matrices of shapes \[\(12, 8\)\] do not make \[8, 8\]"):
        LayerStack(shape, [dataclasses.replace(layer, output=layer.gate)])
    with pytest.raises(ValueError, match=r"mlp_norm has shape \(7,\), expected \(8,\)"):
        LayerStack(shape, [dataclasses.replace(layer, mlp_norm=torch.zeros(7))])
    with pytest.raises(ValueError, match=r"dtype is torch\.int8"):
        LayerStack(dataclasses.replace(shape, dtype=torch.int8), [layer])

    stack = LayerStack(shape, [layer])
    step = make_step((3,), (2,), seed=0)
    work = plan_attention(library, (3,), (5,), step.tables.numpy(), 2, 1, BLOCK_SIZE)
    kind = StepKind(work, Rotation.of(step.positions, torch.ones(2)))
    cache, hidden = torch.zeros(cache_shape(step.num_blocks, 1, BLOCK_SIZE, 1, 4)), torch.zeros(3, 8)
    with pytest.raises(ValueError, match="0 kinds of layers in the step, the decoder has 1"):
        stack.run(library, hidden, cache, step.slots, [])
    with pytest.raises(ValueError, match="the attention is planned for 3 tokens, not 2"):
        stack.run(library, hidden[:2], cache, step.slots[:2], [kind])
    with pytest.raises(ValueError, match="slots are 12 to 12, the cache has 12"):
        stack.run(library, hidden, cache, torch.full((3,), 12), [kind])
    with pytest.raises(ValueError, match="blocks up to"):
        stack.run(library, hidden, cache[:1], step.slots * 0, [kind])
    with pytest.raises(ValueError, match=r"kv_cache is torch\.bfloat16"):
        stack.run(library, hidden, cache.bfloat16(), step.slots, [kind])
