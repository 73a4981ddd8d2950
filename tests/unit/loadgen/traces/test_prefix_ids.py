"""Block ids made from shared lengths, against the tokens themselves."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.traces.prefix_ids import Context, PrefixIds

ROUNDS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(ROUNDS, st.integers(1, 9))
def test_ids_are_equal_where_the_tokens_up_to_there_are(rounds: list[tuple[int, int, int]], block: int) -> None:
    """Each round's prompt is a prefix of the last context and new tokens; every token is named, and so is each block's
    history. Only a whole block is shared, as an engine shares it."""
    ids, context, names = PrefixIds(block), Context(), itertools.count()
    tokens: list[int] = []
    prompts: list[tuple[tuple[int, ...], list[int]]] = []
    for shared, new, answer in rounds:
        shared = min(shared, len(tokens))
        prompt = tokens[:shared] + [next(names) for _ in range(new)]
        prompts.append((ids.prompt(context, shared, len(prompt)), prompt))
        context = ids.answered(prompts[-1][0], len(prompt), answer)
        tokens = prompt + [next(names) for _ in range(answer)]
        assert context.num_tokens == len(tokens)
    for (left_ids, left), (right_ids, right) in itertools.combinations(prompts, 2):
        assert len(left_ids) == -(-len(left) // block)
        for place, (one, other) in enumerate(zip(left_ids, right_ids, strict=False)):
            end = (place + 1) * block
            same = left[:end] == right[:end] and len(left) >= end <= len(right)
            assert (one == other) <= same  # never equal where the tokens are not
    for (before_ids, before), (after_ids, after) in itertools.pairwise(prompts):
        num_same = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after))
        )
        assert before_ids[: num_same // block] == after_ids[: num_same // block]
