"""Scheduler, core, runner and decoder in one process, against transformers on the same weights in float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.weights import LoadedModel, load_model
from kernels.native_library import NativeLibrary
from tests.in_process_engine import Generated, InProcessEngine

GAP = 1e-3
"""Difference of two logits above which every composition of steps must choose the larger."""
NUM_TOKENS = 24
LENGTHS = (1, 2, 15, 16, 17, 40, 63, 101)


class Reference:
    """One transformers model: one whole sequence at a time, no cache of keys and values."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self._judged: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()

    def check_greedy(self, prompts: Sequence[Sequence[int]], generated: Sequence[Sequence[int]]) -> None:
        """Each generated token must be the best one after those before it, or within `GAP` of it."""
        for prompt, tokens in zip(prompts, generated, strict=True):
            key = (tuple(prompt), tuple(tokens))
            if key in self._judged:
                continue
            rows = self._logits([*prompt, *tokens])[len(prompt) - 1 : -1]
            chosen = rows.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
            behind = rows.amax(1) - chosen
            assert behind.max() <= GAP, f"prompt of {len(prompt)}: {tokens} is behind the best by {behind.tolist()}"
            assert (behind == 0).float().mean() > 0.9
            self._judged.add(key)

    def logprobs(self, tokens: Sequence[int]) -> Tensor:
        """[len(tokens), V]: row p is the distribution after token p."""
        return torch.log_softmax(self._logits(tokens).double(), dim=-1)

    @torch.inference_mode()
    def _logits(self, tokens: Sequence[int]) -> Tensor:
        logits: Tensor = self._model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits


def random_prompts(lengths: Sequence[int], vocab_size: int = 400) -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture(scope="module")
def model(tiny_model_path: Path, library: NativeLibrary | None) -> LoadedModel:
    return load_model(str(tiny_model_path), "float32", lambda fraction: None, library=library)


@pytest.fixture(scope="module")
def reference(tiny_model_path: Path) -> Reference:
    from transformers import AutoModelForCausalLM

    return Reference(AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32))


@dataclasses.dataclass(frozen=True)
class MakeEngine:
    """Engines on the kernels that computed the model."""

    model: LoadedModel
    library: NativeLibrary | None

    def __call__(self, **options: Any) -> InProcessEngine:
        return InProcessEngine(self.model, library=self.library, **({"num_blocks": 200, "max_num_seqs": 16} | options))


@pytest.fixture
def make_engine(model: LoadedModel, library: NativeLibrary | None) -> MakeEngine:
    return MakeEngine(model, library)


@pytest.mark.parametrize("max_num_batched_tokens", [16, 50, 512])
@pytest.mark.parametrize("block_size", [4, 16])
def test_chunked_and_batched_greedy_equals_transformers(
    make_engine: MakeEngine, reference: Reference, max_num_batched_tokens: int, block_size: int
) -> None:
    """Prompts of all lengths around a block's."""
    engine = make_engine(block_size=block_size, max_num_batched_tokens=max_num_batched_tokens)
    prompts = random_prompts(LENGTHS)
    generated = engine.generate(prompts, max_tokens=NUM_TOKENS)
    assert [len(tokens) for tokens in generated] == [NUM_TOKENS] * len(prompts)
    reference.check_greedy(prompts, generated)


def test_preempted_requests_end_with_the_same_tokens(make_engine: MakeEngine, reference: Reference) -> None:
    engine = make_engine(num_blocks=34, block_size=4, max_num_batched_tokens=64, max_model_len=130)
    prompts = random_prompts([length for length in LENGTHS if length < 20] * 2)
    generated = engine.generate(prompts, max_tokens=NUM_TOKENS)
    assert engine.stats is not None and engine.stats.num_preemptions > 0
    assert [len(tokens) for tokens in generated] == [NUM_TOKENS] * len(prompts)
    reference.check_greedy(prompts, generated)


def test_prompts_from_the_prefix_cache_end_with_the_same_tokens(make_engine: MakeEngine, reference: Reference) -> None:
    """A whole prompt, a part of one, and a prompt with its own output appended."""
    engine = make_engine(block_size=4, max_num_batched_tokens=64)
    (prompt,) = random_prompts([64])
    first = engine.generate([prompt], max_tokens=NUM_TOKENS)[0]
    again = {"whole": prompt, "part": [*prompt[:37], 9, 8, 7], "longer": [*prompt, *first]}
    for name, tokens in again.items():
        engine.submit(name, [tokens], max_tokens=NUM_TOKENS)
    engine.run()
    assert engine.num_cached_tokens == {"0.0": 0, "whole": 60, "part": 36, "longer": 84}
    reference.check_greedy(list(again.values()), [engine.generated[name, 0].token_ids for name in again])


def test_choices_continue_from_one_prefill(make_engine: MakeEngine, reference: Reference) -> None:
    """Prompts that end inside a block, at its end and just past it."""
    engine = make_engine(block_size=4, max_num_batched_tokens=512)
    prompts = random_prompts([15, 16, 17])
    engine.submit("g", prompts, n=3, max_tokens=NUM_TOKENS)
    engine.run()
    generated = [engine.generated["g", choice].token_ids for choice in range(9)]
    reference.check_greedy([prompt for prompt in prompts for _ in range(3)], generated)
    computed = engine.stats.prompt_tokens_computed if engine.stats else 0
    assert computed <= 15 + 16 + 17 + 6  # each further choice computes its last prompt token again


@pytest.mark.parametrize("max_num_batched_tokens", [16, 512])
def test_log_probabilities_are_those_of_transformers(
    make_engine: MakeEngine, reference: Reference, max_num_batched_tokens: int
) -> None:
    engine = make_engine(block_size=4, max_num_batched_tokens=max_num_batched_tokens)
    prompts = random_prompts([2, 33, 90])
    for index, prompt in enumerate(prompts):
        engine.submit(str(index), [prompt], max_tokens=5, num_prompt_logprobs=index, num_logprobs=3)
    engine.run()
    for index, prompt in enumerate(prompts):
        result = engine.generated[str(index), 0]
        rows = reference.logprobs([*prompt, *result.token_ids])
        assert len(result.prompt_logprobs) == len(prompt) - 1 and len(result.logprobs) == 5
        for position, (score, token) in enumerate(
            zip((*result.prompt_logprobs, *result.logprobs), (*prompt[1:], *result.token_ids), strict=True)
        ):
            row = rows[position]
            assert score.token_id == token
            assert score.logprob == pytest.approx(float(row[token]), abs=1e-4)
            assert score.top_logprobs == pytest.approx(row.topk(len(score.top_logprobs)).values.tolist(), abs=1e-4)
            assert score.top_logprobs == pytest.approx([float(row[t]) for t in score.top_token_ids], abs=1e-4)
        assert [len(score.top_token_ids) for score in result.prompt_logprobs] == [index] * (len(prompt) - 1)


def test_what_lies_in_unused_blocks_reaches_nobody(make_engine: MakeEngine, reference: Reference) -> None:
    engine = make_engine(block_size=16, max_num_batched_tokens=50)
    engine.runner.kv_cache.region.fill_(torch.nan)
    prompts = random_prompts(LENGTHS)
    reference.check_greedy(prompts, engine.generate(prompts, max_tokens=NUM_TOKENS))


def test_seeded_samples_do_not_depend_on_company_chunks_or_memory(
    tiny_model_path: Path, library: NativeLibrary | None
) -> None:
    """With kernels that are batch-invariant every number is equal, log-probabilities too."""
    make_engine = MakeEngine(
        load_model(str(tiny_model_path), "float32", lambda fraction: None, batch_invariant=True, library=library),
        library,
    )
    prompts = random_prompts(LENGTHS)
    options = {"temperature": 1.0, "top_p": 0.9, "max_tokens": 12, "n": 2, "num_logprobs": 2}

    def generate(engine: InProcessEngine, *indices: int) -> dict[tuple[str, int], Generated]:
        for index in indices:
            engine.submit(str(index), [prompts[index]], seed=index, **options)
        engine.run()
        return engine.generated

    every = range(len(prompts))
    together = generate(make_engine(block_size=4, max_num_batched_tokens=32), *every)
    scarce = make_engine(num_blocks=30, block_size=4, max_num_batched_tokens=512, max_model_len=120)
    assert generate(scarce, *every) == together
    assert scarce.stats is not None and scarce.stats.num_preemptions > 0
    for index in every:
        alone = generate(make_engine(block_size=16, max_num_batched_tokens=512), index)
        assert alone == {key: value for key, value in together.items() if key[0] == str(index)}
    sampled = [generated.token_ids for generated in together.values()]
    assert len({tuple(tokens) for tokens in sampled}) > len(sampled) // 2


REAL_NUM_TOKENS = 12
REAL_PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Water flows through the channel to the turbine, which turns the generator. " * 6 + "The generator",
    "1, 2, 3, 4,",
)


@pytest.mark.real_model
@pytest.mark.timeout(600)
def test_the_default_model_continues_like_transformers(
    real_model_path: Path, real_transformers_model: Any, library: NativeLibrary | None
) -> None:
    """Small and large steps, a pool that forces preemption, and prompts read from the prefix cache."""
    from server.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(real_model_path)
    prompts = [tokenizer.encode(text, add_special_tokens=True, parse_special=False) for text in REAL_PROMPTS]
    model = load_model(str(real_model_path), "float32", lambda fraction: None, library=library)
    make_engine = MakeEngine(model, library)
    scarce = make_engine(num_blocks=38, block_size=4, max_num_batched_tokens=16, max_model_len=120)
    ample = make_engine(block_size=16, max_num_batched_tokens=512)
    generated = [engine.generate(prompts, max_tokens=REAL_NUM_TOKENS) for engine in (scarce, ample, ample)]
    assert scarce.stats is not None and scarce.stats.num_preemptions > 0
    assert ample.stats is not None and ample.stats.prefix_cache_hits >= 64
    reference = Reference(real_transformers_model)
    for tokens in generated:
        reference.check_greedy(prompts, tokens)
