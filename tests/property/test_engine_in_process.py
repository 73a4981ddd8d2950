"""Scheduler, core and runner together, over a decoder whose every token depends on the whole cached context."""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.native_library import NativeLibrary
from tests.in_process_engine import InProcessEngine
from tests.unit.engine.fake_decoder import FakeDecoder, FakeModel, expected_tokens

BLOCK_SIZE = 4
STEM = [(11 * index) % 97 for index in range(40)]


@dataclasses.dataclass(frozen=True)
class Offer:
    """A group, the turn in which it arrives and the one in which it is aborted."""

    prompts: tuple[tuple[int, ...], ...]
    n: int
    max_tokens: int
    temperature: float
    prompt_logprobs: int | None
    slo: str
    turn: int
    abort_turn: int | None

    def submit(self, engine: InProcessEngine, group_id: str) -> None:
        engine.submit(
            group_id,
            self.prompts,
            n=self.n,
            slo=self.slo,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=0.9,
            seed=5,
            num_prompt_logprobs=self.prompt_logprobs,
        )


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Many share a prefix."""
    stem = STEM[: draw(st.integers(0, len(STEM)))]
    return (*stem, *draw(st.lists(st.integers(0, 100), min_size=1, max_size=6)))


offers = st.builds(
    Offer,
    prompts=st.lists(prompts(), min_size=1, max_size=2).map(tuple),
    n=st.integers(1, 3),
    max_tokens=st.integers(0, 12),
    temperature=st.sampled_from([0.0, 3.0]),
    prompt_logprobs=st.sampled_from([None, None, None, 0, 2]),
    slo=st.sampled_from(["realtime", "standard", "batch"]),
    turn=st.integers(0, 12),
    abort_turn=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 20)),
)


def make_engine(
    library: NativeLibrary | None, *, num_blocks: int, max_num_batched_tokens: int, max_num_seqs: int
) -> InProcessEngine:
    """The library's kernels sample."""
    return InProcessEngine(
        FakeModel(FakeDecoder()),
        num_blocks=num_blocks,
        max_model_len=64,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        library=library,
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    offered=st.lists(offers, min_size=1, max_size=7),
    num_blocks=st.integers(16, 40),
    max_num_batched_tokens=st.integers(6, 64),
    max_num_seqs=st.integers(1, 6),
)
def test_company_and_memory_never_change_a_token(
    library: NativeLibrary | None,
    offered: list[Offer],
    num_blocks: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> None:
    engine = make_engine(
        library, num_blocks=num_blocks, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs
    )
    for turn in range(1 + max(max(offer.turn, offer.abort_turn or 0) for offer in offered)):
        for index, offer in enumerate(offered):
            if offer.turn == turn:
                offer.submit(engine, str(index))
            if offer.abort_turn == turn:
                engine.abort(str(index))
        engine.turn()
    engine.run()
    for index, offer in enumerate(offered):
        alone = make_engine(library, num_blocks=100, max_num_batched_tokens=64, max_num_seqs=12)
        offer.submit(alone, "alone")
        alone.run()
        for choice in range(offer.n * len(offer.prompts)):
            generated, expected = engine.generated[str(index), choice], alone.generated["alone", choice]
            prompt = offer.prompts[choice // offer.n]
            if offer.temperature == 0:
                assert expected.token_ids == expected_tokens(prompt, offer.max_tokens)
            if str(index) in engine.refused:
                assert generated.token_ids == []
            elif generated.finish_reason == "abort":
                count = len(generated.token_ids)
                assert offer.abort_turn is not None and generated.token_ids == expected.token_ids[:count]
            else:
                assert generated == expected
                assert len(generated.token_ids) == offer.max_tokens
                rows = 0 if offer.prompt_logprobs is None else len(prompt) - 1
                assert [score.token_id for score in generated.prompt_logprobs] == list(prompt[1:][:rows])


def test_a_small_pool_preempts_and_changes_nothing(library: NativeLibrary | None) -> None:
    engine = make_engine(library, num_blocks=17, max_num_batched_tokens=16, max_num_seqs=6)
    batches = [tuple(range(first, first + 9)) for first in range(6)]
    assert engine.generate(batches, max_tokens=20) == [expected_tokens(prompt, 20) for prompt in batches]
    assert engine.stats is not None and engine.stats.num_preemptions > 0


def test_a_second_prompt_reads_the_blocks_of_the_first(library: NativeLibrary | None) -> None:
    engine = make_engine(library, num_blocks=40, max_num_batched_tokens=64, max_num_seqs=6)
    engine.generate([STEM])
    engine.submit("again", [[*STEM[:30], 1, 2]])
    engine.run()
    assert engine.num_cached_tokens["again"] == 28
    assert engine.generated["again", 0].token_ids == expected_tokens([*STEM[:30], 1, 2], 16)
