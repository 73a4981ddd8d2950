from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.profile_grid import ProfileLimits, StepShape, brief_grid, brief_held_out_grid, grid, held_out_grid

LIMITS = st.builds(
    lambda seqs, more, context, blocks: ProfileLimits(seqs, seqs + more, min(context, 16 * blocks), 16 * blocks),
    st.integers(1, 300),
    st.integers(0, 4000),
    st.integers(1, 200_000),
    st.integers(1, 20_000),
)


@given(LIMITS)
def test_only_steps_that_can_be_are_measured_and_none_twice(limits: ProfileLimits) -> None:
    fitted, held_out = grid(limits), held_out_grid(limits)
    shapes = [*fitted, *held_out]
    assert all(limits.allow(shape) for shape in shapes)
    assert len(shapes) == len(set(shapes))
    assert fitted[0] == StepShape(1, 1, min(64, limits.max_context_tokens))
    assert len(shapes) < 100


@given(LIMITS)
def test_the_largest_steps_are_among_them(limits: ProfileLimits) -> None:
    loads = [shape.load for shape in grid(limits)]
    largest_chunk = min(limits.max_num_tokens, limits.max_context_tokens)
    assert max(load.num_tokens for load in loads) >= largest_chunk
    largest_batch = min(limits.max_num_sequences, limits.kv_tokens)
    assert largest_batch / 2 < max(load.num_sequences for load in loads if load.is_decode) <= largest_batch


@given(LIMITS)
def test_a_sketch_begins_with_what_is_needed_most(limits: ProfileLimits) -> None:
    fitted, held_out = brief_grid(limits), brief_held_out_grid(limits)
    shapes = [*fitted, *held_out]
    assert all(limits.allow(shape) for shape in shapes)
    assert len(shapes) == len(set(shapes)) <= 40
    assert fitted[0] == grid(limits)[0]
    chunk = min(16, limits.max_num_tokens, limits.max_context_tokens)
    assert chunk == 1 or fitted[1] == StepShape(1, chunk, chunk)
    assert set(held_out) <= set(held_out_grid(limits))


def test_a_sketch_tells_tokens_sequences_and_context_apart() -> None:
    limits = ProfileLimits(64, 512, 2048, 2048)
    decodes = [shape for shape in brief_grid(limits) if shape.tokens_each == 1]
    assert {shape.num_sequences for shape in decodes} == {1, 2, 4, 8, 16, 32, 64}
    assert len({shape.context_each for shape in decodes if shape.num_sequences == 8}) == 2
    chunks = [shape for shape in brief_grid(limits) if shape.tokens_each > 1]
    assert {shape.tokens_each for shape in chunks} == {4, 8, 16, 64, 256, 512}
    assert any(shape.context_each > shape.tokens_each for shape in chunks)
    assert {shape.tokens_each == 1 for shape in brief_held_out_grid(limits)} == {True, False}


def test_a_server_of_usual_size_has_held_out_steps_of_both_kinds() -> None:
    limits = ProfileLimits(64, 512, 8192, 23_296)
    held_out = [shape.load for shape in held_out_grid(limits)]
    assert {load.is_decode for load in held_out} == {True, False}
    assert {3, 6, 12, 24, 48} <= {load.num_sequences for load in held_out}


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="kv_tokens is 0, it must be at least 1"):
        ProfileLimits(1, 1, 1, 0)
