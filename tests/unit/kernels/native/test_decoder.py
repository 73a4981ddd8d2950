"""A step of a decoder in one call against the definitions of its operations, one after the other."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.attention.base import AttentionMetadata, cache_shape
from kernels.linear import packed_bytes
from kernels.native.activation import Activation
from kernels.native.decoder import DecoderOperands, LayerKind, LayerOperands, LayerShape, NativeStack
from kernels.native.rotary import HeadNorms
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
    num_still_pairs: int
    """Of the dimensions of a head, that do not turn."""
    rotation_scale: float


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


VOCAB_SIZE = 21


def make_step(query_lens: tuple[int, ...], cached_lens: tuple[int, ...], seed: int) -> tuple[AttentionMetadata, int]:
    """A step over shuffled blocks, and the number of blocks."""
    context_lens = tuple(q + c for q, c in zip(query_lens, cached_lens, strict=True))
    counts = [-(-length // BLOCK_SIZE) for length in context_lens]
    free = torch.randperm(sum(counts) + 1, generator=torch.Generator().manual_seed(seed)).tolist()
    rows = [[free.pop() for _ in range(count)] for count in counts]
    tables = torch.tensor([row + [0] * (max(counts) - len(row)) for row in rows])
    positions = [torch.arange(cached, length) for cached, length in zip(cached_lens, context_lens, strict=True)]
    slots = [tables[i][place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE for i, place in enumerate(positions)]
    metadata = AttentionMetadata(query_lens, context_lens, tables, torch.cat(slots), torch.cat(positions))
    return metadata, sum(counts) + 1


def expected_layer(
    shape: LayerShape,
    options: Options,
    layer: LayerOperands,
    hidden: Tensor,
    cache: Tensor,
    step: AttentionMetadata,
    kind: LayerKind,
) -> Tensor:
    num_turned = 2 * len(kind.frequencies)

    def turn(x: Tensor) -> Tensor:
        turned = reference.rotate(x[..., :num_turned], step.positions, kind.frequencies)
        return torch.cat((kind.rotation_scale * turned, x[..., num_turned:]), dim=-1)

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
    query, key = turn(query), turn(key)
    reference.write_kv(key, value, cache, step.slot_mapping)
    attended = reference.paged_attention(
        query, cache, step.query_lens, step.context_lens, step.block_tables, shape.attention_scale,
        kind.sliding_window, options.soft_cap,
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
    num_still_pairs=st.integers(0, 1),
    rotation_scale=st.sampled_from([1.0, 1.2]),
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
def test_a_step_is_its_operations_in_order(
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
    layers = tuple(make_operands(shape, options, numbers, kind=i % len(options.windows)) for i in range(num_layers))
    num_frequencies = half_dim - options.num_still_pairs
    kinds = tuple(
        LayerKind(0.1 * numbers(num_frequencies), window, options.rotation_scale) for window in options.windows
    )
    embedding, final_norm = numbers(VOCAB_SIZE, hidden_size), numbers(hidden_size)
    step, num_blocks = make_step(tuple(q for q, _ in lens), tuple(c for _, c in lens), seed)
    token_ids = torch.randint(0, VOCAB_SIZE, step.positions.shape, generator=torch.Generator().manual_seed(seed))
    cache = numbers(*cache_shape(num_blocks, num_layers, BLOCK_SIZE, num_kv_heads, shape.head_dim))
    hidden, expected_cache = 3.0 * embedding[token_ids], cache.clone()
    for index, layer in enumerate(layers):
        hidden = expected_layer(shape, options, layer, hidden, expected_cache[:, index], step, kinds[layer.kind])

    operands = DecoderOperands(layers, kinds, pack(embedding), final_norm, embedding_scale=3.0)
    out = NativeStack(library, shape, operands).forward(token_ids, cache, step)
    torch.testing.assert_close(out, reference.rms_norm(hidden, final_norm, 1e-5), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache, expected_cache, rtol=1e-4, atol=1e-4)


@given(
    options=option_sets,
    lens=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=4),
    cuts=st.sets(st.integers(1, 4)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_ranges_of_layers_give_the_bits_of_one_call_wherever_the_weights_are_moved(
    library: NativeLibrary,
    options: Options,
    lens: list[tuple[int, int]],
    cuts: set[int],
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Between ranges another decoder computes; each layer's weights are there only while it is computed."""
    shape = LayerShape(24, 40, 4, 2, 6, 1e-5, 0.3, dtype, options.soft_cap, options.activation)
    numbers, num_layers = Numbers(seed), 5
    layers = tuple(make_operands(shape, options, numbers, kind=i % len(options.windows)) for i in range(num_layers))
    kinds = tuple(LayerKind(0.1 * numbers(3), window) for window in options.windows)
    operands = DecoderOperands(layers, kinds, pack(numbers(VOCAB_SIZE, 24)), numbers(24))
    step, num_blocks = make_step(tuple(q for q, _ in lens), tuple(c for _, c in lens), seed)
    token_ids = torch.randint(0, VOCAB_SIZE, step.positions.shape, generator=torch.Generator().manual_seed(seed))
    cache = numbers(*cache_shape(num_blocks, num_layers, BLOCK_SIZE, 2, 6)).to(dtype)
    expected_cache = cache.clone()
    expected = NativeStack(library, shape, operands).forward(token_ids, expected_cache, step)

    stack = NativeStack(library, shape, operands)
    bounds = [0, *sorted(cuts), num_layers]
    ranges = stack.begin(token_ids, cache, step)
    for first, end in itertools.pairwise(bounds):
        moved = [moved_elsewhere(layer) for layer in layers[first:end]]
        for index, layer in enumerate(moved, start=first):
            stack.move(index, stack.place(layer))
        ranges.run(first, end)
        for layer in moved:
            for matrix in (*layer.qkv, layer.output, layer.gate, layer.up, layer.down):
                matrix.data.fill_(0xDB)
    assert torch.equal(ranges.out, expected)
    assert torch.equal(cache, expected_cache)


def moved_elsewhere(layer: LayerOperands) -> LayerOperands:
    """The same numbers in memory of their own."""

    def copy(matrix: PackedMatrix) -> PackedMatrix:
        return dataclasses.replace(matrix, data=matrix.data.clone())

    return dataclasses.replace(
        layer,
        qkv=tuple(map(copy, layer.qkv)),
        output=copy(layer.output),
        gate=copy(layer.gate),
        up=copy(layer.up),
        down=copy(layer.down),
    )


def test_a_range_that_does_not_come_next_is_refused(library: NativeLibrary) -> None:
    shape, operands = small_decoder(num_layers=3)
    step, num_blocks = make_step((3,), (2,), seed=0)
    cache, token_ids = torch.zeros(cache_shape(num_blocks, 3, BLOCK_SIZE, 1, 4)), torch.tensor([0, 1, 2])
    stack, other = (NativeStack(library, shape, operands) for _ in range(2))
    ranges = stack.begin(token_ids, cache, step)
    for wrong in ((1, 3), (0, 0), (0, 4), (-1, 1)):
        with pytest.raises(ValueError, match=rf"layers {wrong[0]} to {wrong[1]} of 3 in a step of 3 tokens are out"):
            ranges.run(*wrong)
    ranges.run(0, 1)
    for wrong in ((2, 3), (1, 1)):
        with pytest.raises(ValueError, match="what comes next"):
            ranges.run(*wrong)
    ranges.run(1, 2)
    other.forward(token_ids, cache, step)
    with pytest.raises(ValueError, match="what comes next"):
        ranges.run(2, 3)
    again = stack.begin(token_ids, cache, step)
    again.run(0, 3)
    assert torch.equal(again.out, other.forward(token_ids, cache, step))
    with pytest.raises(ValueError, match="what comes next"):
        again.run(2, 3)


def test_weights_that_do_not_fit_are_refused(library: NativeLibrary) -> None:
    shape, operands = small_decoder()
    (layer,) = operands.layers

    def make(**changes: Any) -> NativeStack:
        return NativeStack(library, shape, dataclasses.replace(operands, **changes))

    with pytest.raises(ValueError, match=r"output: matrices of shapes \[\(12, 8\)\] do not make \[8, 8\]"):
        make(layers=(dataclasses.replace(layer, output=layer.gate),))
    with pytest.raises(ValueError, match=r"mlp_norm has shape \(7,\), expected \(8,\)"):
        make(layers=(dataclasses.replace(layer, mlp_norm=torch.zeros(7)),))
    with pytest.raises(ValueError, match=r"head norms have eps 1\.0, the layer's norms 1e-05"):
        make(layers=(dataclasses.replace(layer, head_norms=HeadNorms(torch.ones(4), torch.ones(4), 1.0)),))
    with pytest.raises(ValueError, match="1 layers name a kind beyond the 1 given"):
        make(layers=(dataclasses.replace(layer, kind=1),))
    with pytest.raises(ValueError, match="the embedding has rows of 12, not 8"):
        make(embedding=layer.down)
    with pytest.raises(ValueError, match="6 dimensions are rotated, a head has 4"):
        make(kinds=(LayerKind(torch.ones(3)),))
    with pytest.raises(ValueError, match="sliding_window is 0"):
        make(kinds=(LayerKind(torch.ones(2), sliding_window=0),))
    with pytest.raises(ValueError, match=r"dtype is torch\.int8"):
        NativeStack(library, dataclasses.replace(shape, dtype=torch.int8), operands)


@pytest.mark.parametrize(
    "changes",
    [
        {"slot_mapping": torch.tensor([0, 1, 12])},
        {"slot_mapping": torch.tensor([0, -2, 1])},
        {"query_lens": (2,)},
        {"query_lens": (0,)},
        {"context_lens": (2,)},
        {"context_lens": (9,)},
        {"block_tables": torch.tensor([[0, 3]])},
        {"block_tables": torch.tensor([[-1, 0]])},
        {"token_ids": torch.tensor([0, VOCAB_SIZE, 0])},
        {"token_ids": torch.tensor([0, -1, 0])},
    ],
    ids=str,
)
def test_a_step_that_points_elsewhere_is_refused_and_nothing_is_written(
    library: NativeLibrary, changes: dict[str, Any]
) -> None:
    shape, operands = small_decoder()
    step, num_blocks = make_step((3,), (2,), seed=0)
    cache = torch.zeros(cache_shape(num_blocks, 1, BLOCK_SIZE, 1, 4))
    assert num_blocks == 3
    stack = NativeStack(library, shape, operands)
    token_ids = changes.get("token_ids", torch.tensor([0, 1, 2]))
    wrong = dataclasses.replace(step, **{name: value for name, value in changes.items() if name != "token_ids"})
    with pytest.raises(
        ValueError, match=r"a step of 3 tokens are out of range: .* the vocabulary of 21, the cache of 3"
    ):
        stack.forward(token_ids, cache, wrong)
    assert not cache.any()
    stack.forward(torch.tensor([0, 1, 2]), cache, step)
    assert cache.any()


def test_tensors_of_a_step_that_do_not_fit_are_refused(library: NativeLibrary) -> None:
    shape, operands = small_decoder()
    step, num_blocks = make_step((3,), (2,), seed=0)
    cache, token_ids = torch.zeros(cache_shape(num_blocks, 1, BLOCK_SIZE, 1, 4)), torch.tensor([0, 1, 2])
    stack = NativeStack(library, shape, operands)
    with pytest.raises(ValueError, match="1 query and 2 context lengths"):
        stack.forward(token_ids, cache, dataclasses.replace(step, context_lens=(5, 5)))
    with pytest.raises(ValueError, match=r"kv_cache is torch\.bfloat16"):
        stack.forward(token_ids, cache.bfloat16(), step)
    with pytest.raises(
        ValueError, match=r"positions: torch\.int64 \(3,\) on cpu, strides \(1,\); expected contiguous .* of 2"
    ):
        stack.forward(token_ids[:2], cache, step)
    with pytest.raises(ValueError, match=r"token_ids: torch\.int32 \(3,\)"):
        stack.forward(token_ids.int(), cache, step)
    with pytest.raises(ValueError, match=r"block_tables: torch\.int64 \(2, 2\).*of 1"):
        stack.forward(token_ids, cache, dataclasses.replace(step, block_tables=step.block_tables.expand(2, -1)))


def test_an_empty_step_is_nothing(library: NativeLibrary) -> None:
    shape, operands = small_decoder(num_layers=2)
    none = torch.zeros(0, dtype=torch.int64)
    step = AttentionMetadata((), (), torch.zeros(0, 0, dtype=torch.int64), none, none)
    stack, cache = NativeStack(library, shape, operands), torch.zeros(cache_shape(1, 2, BLOCK_SIZE, 1, 4))
    assert stack.forward(none, cache, step).shape == (0, 8)
    ranges = stack.begin(none, cache, step)
    ranges.run(0, 1)
    ranges.run(1, 2)
    assert ranges.out.shape == (0, 8)


def small_decoder(num_layers: int = 1) -> tuple[LayerShape, DecoderOperands]:
    shape, numbers = LayerShape(8, 12, 2, 1, 4, 1e-5, 0.5, torch.float32), Numbers(0)
    options = Options(True, False, False, False, Activation.SILU, None, (None,), 0, 1.0)
    layers = tuple(make_operands(shape, options, numbers, kind=0) for _ in range(num_layers))
    return shape, DecoderOperands(layers, (LayerKind(torch.ones(2)),), pack(numbers(VOCAB_SIZE, 8)), numbers(8))
