"""Which steps a profile measures: a grid for the fit, and points between its lines to see how good the fit is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from offload.step_load import StepLoad

SHORT_CONTEXT_TOKENS = 64
LONG_CONTEXT_TOKENS = 4096
"""Attention is straight in the context: longer ones need not be measured."""
MIN_CHUNK_TOKENS = 16
MIDDLE_BATCH = 8


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileLimits:
    """The largest step that the server will make.

    Raises:
        ValueError: there is no step within these.
    """

    max_num_sequences: int
    max_num_tokens: int
    max_context_tokens: int
    """Of one sequence."""
    kv_tokens: int
    """Of all sequences: what the KV blocks hold."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, it must be at least 1")

    def allow(self, shape: StepShape) -> bool:
        """Whether such a step can be."""
        load = shape.load
        return (
            load.num_sequences <= self.max_num_sequences
            and load.num_tokens <= self.max_num_tokens
            and shape.context_each <= self.max_context_tokens
            and load.num_context_tokens <= self.kv_tokens
        )


@dataclasses.dataclass(frozen=True, slots=True)
class StepShape:
    """A step of sequences that are all alike."""

    num_sequences: int
    tokens_each: int
    """Computed."""
    context_each: int
    """With keys and values after the step."""

    @property
    def load(self) -> StepLoad:
        n = self.num_sequences
        return StepLoad(n * self.tokens_each, n, n * self.context_each)


def grid(limits: ProfileLimits) -> tuple[StepShape, ...]:
    """What the fit is made of: decodes of 1, 2, 4, ... sequences and chunks of 16, 32, 64, ... tokens."""
    batches = _doubling(1, limits.max_num_sequences)
    chunks = _doubling(MIN_CHUNK_TOKENS, min(limits.max_num_tokens, limits.max_context_tokens))
    return _allowed(limits, [*_decodes(limits, batches, is_dense=True), *_chunks(limits, chunks)])


def held_out_grid(limits: ProfileLimits) -> tuple[StepShape, ...]:
    """Between the points of `grid`, in batch, chunk and context."""
    batches = [batch + batch // 2 for batch in _doubling(2, limits.max_num_sequences)]
    chunks = [chunk + chunk // 2 for chunk in _doubling(MIN_CHUNK_TOKENS, limits.max_num_tokens)]
    decodes = [StepShape(batch, 1, _longest(limits, batch) // 3 + 1) for batch in batches]
    prefills = [StepShape(1, chunk, chunk + index % 2 * _longest(limits, 1) // 5) for index, chunk in enumerate(chunks)]
    known = set(grid(limits))
    return tuple(shape for shape in _allowed(limits, [*decodes, *prefills]) if shape not in known)


def brief_grid(limits: ProfileLimits) -> tuple[StepShape, ...]:
    """A sketch of `grid`, the most needed first: what a decode takes, a token of prefill, a token of context."""
    one, middle, most, *between = [
        StepShape(batch, 1, min(SHORT_CONTEXT_TOKENS, _longest(limits, batch))) for batch in _brief_batches(limits)
    ]
    sizes = _doubling(MIN_CHUNK_TOKENS, min(limits.max_num_tokens, limits.max_context_tokens))
    first, *others = [StepShape(1, size, size) for size in sorted({*sizes[::2], sizes[-1]})]
    second = others[0] if others else first
    behind = min(second.context_each + LONG_CONTEXT_TOKENS // 2, limits.max_context_tokens, limits.kv_tokens)
    by_need = [
        one, first, dataclasses.replace(one, context_each=_longest(limits, 1)), middle, second, most,
        dataclasses.replace(second, context_each=behind), *others[1:],
        dataclasses.replace(middle, context_each=_longest(limits, middle.num_sequences)), *between,
    ]  # fmt: skip
    # The steps up to the first chunk, for models so slow that only these tell how slow that is.
    return _allowed(limits, [*by_need, *(StepShape(1, size, size) for size in (MIN_CHUNK_TOKENS // 2, 4))])


def brief_held_out_grid(limits: ProfileLimits) -> tuple[StepShape, ...]:
    """A decode and a chunk of `held_out_grid`, neither among the smallest."""
    shapes = held_out_grid(limits)
    decodes = [shape for shape in shapes if shape.tokens_each == 1]
    chunks = [shape for shape in shapes if shape.tokens_each > 1]
    return (*decodes[len(decodes) // 2 :][:1], *chunks[1:2])


def _brief_batches(limits: ProfileLimits) -> list[int]:
    """1, a middle one, the largest, then those between."""
    most = limits.max_num_sequences
    middle = min(MIDDLE_BATCH, most)
    return [1, middle, most, *(batch for batch in _doubling(1, most) if batch not in (1, middle, most))]


def _decodes(limits: ProfileLimits, batches: list[int], *, is_dense: bool) -> Iterator[StepShape]:
    for index, batch in enumerate(batches):
        longest = _longest(limits, batch)
        short = min(SHORT_CONTEXT_TOKENS, longest)
        yield StepShape(batch, 1, short)
        if longest >= 2 * short:
            yield StepShape(batch, 1, longest)
        if is_dense and index % 3 == 0 and longest >= 4 * short:
            yield StepShape(batch, 1, longest // 2)


def _chunks(limits: ProfileLimits, chunks: list[int]) -> Iterator[StepShape]:
    for index, chunk in enumerate(chunks):
        yield StepShape(1, chunk, chunk)
        if (len(chunks) - 1 - index) % 2 == 0:  # the largest among them
            yield StepShape(
                1, chunk, min(limits.max_context_tokens, limits.kv_tokens, chunk + LONG_CONTEXT_TOKENS // 2)
            )


def _longest(limits: ProfileLimits, batch: int) -> int:
    return max(1, min(limits.max_context_tokens, limits.kv_tokens // batch, LONG_CONTEXT_TOKENS))


def _doubling(first: int, last: int) -> list[int]:
    """`first`, twice that, ..., `last`; `last` alone, where it is less than `first`."""
    values = []
    while first < last:
        values.append(first)
        first *= 2
    return [*values, last]


def _allowed(limits: ProfileLimits, shapes: list[StepShape]) -> tuple[StepShape, ...]:
    return tuple(shape for shape in dict.fromkeys(shapes) if limits.allow(shape))
