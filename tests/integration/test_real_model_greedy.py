"""SmolLM2 against transformers, both in float32 from the same GGUF file: 24 prompts, 64 greedy tokens each.

Ours, on PyTorch's operators and on the native kernels, generates, all sequences in one batch, over shuffled pages,
prompts in chunks. Theirs then reads prompt and answer in one pass and says at every place which token it would have
chosen: if all agree, its own greedy answer is the same, token after token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.weights import load_model
from kernels.native_library import NativeLibrary
from server.tokenizer import Tokenizer
from tests.paged_decoding import PagedDecoding

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

NUM_NEW_TOKENS = 64
CHUNK_TOKENS = 512
LOGIT_TOLERANCE = 5e-4
"""Float32 on logits of magnitude 30 through 30 layers; measured: 1e-4 at most."""

STORY = (
    "The mill stood where the river left the hills. In spring the miller opened the gate of the headrace and the water "
    "ran along the stone channel to the wheel; in summer he let through only as much as the grain of the day needed, "
    "for what he wasted in the morning was missing in the evening. His daughter kept the book: how much water, how "
    "many sacks, who had to wait and for how long. "
)
LIST = "".join(
    f"{n}. Item number {n} costs {n * 7 % 100} coins and weighs {n * 13 % 50} stones.\n" for n in range(1, 56)
)
PYTHON = '''import heapq


def dijkstra(graph: dict[str, dict[str, float]], source: str) -> dict[str, float]:
    """Shortest distances from source."""
    distances = {source: 0.0}
    queue = [(0.0, source)]
    while queue:
        distance, node = heapq.heappop(queue)
'''
C_CODE = "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; i++) {\n"
USER_TURNS = (
    "What is the capital of France?",
    "Hi",
    "Write a haiku about rivers.",
    "Explain in two sentences why the sky is blue.",
    "List three fruits, one per line.",
    "Translate to Spanish: The water is cold.",
    "中国的首都是哪里？请用中文回答。",
    "请写一首关于春天的短诗。",
    "What does 🎉🎂🥳 mean?",
    "Reply with emoji only: how is the weather? ☀️🌧️❄️",
    "What is 17 times 23?",
    "Who wrote Hamlet?",
    f"Summarise this text in one sentence:\n\n{STORY * 14}",
    f"Which item is the most expensive?\n\n{LIST}",
)
PLAIN_TEXTS = (
    "Once upon a time",
    "The",
    PYTHON,
    C_CODE,
    'SELECT name, COUNT(*) FROM orders WHERE status = "late" GROUP BY',
    '{"name": "Ada", "languages": ["',
    "春天来了，河水",
    "Привет, как",
    STORY * 14,
    "A\tB\tC\n1\t2\t3\n4\t5\t6\n",
)


def encode_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    chats = [f"<|im_start|>user\n{turn}<|im_end|>\n<|im_start|>assistant\n" for turn in USER_TURNS]
    return [tokenizer.encode(text, add_special_tokens=False, parse_special=True) for text in (*chats, *PLAIN_TEXTS)]


def generate(
    path: Path, prompts: list[list[int]], library: NativeLibrary | None
) -> tuple[list[list[int]], list[Tensor]]:
    """Greedy answers, and the logits [NUM_NEW_TOKENS, vocab] they were chosen from."""
    decoder = load_model(str(path), "float32", lambda _: None, library=library).decoder
    num_blocks = sum(-(-(len(prompt) + NUM_NEW_TOKENS) // 16) for prompt in prompts)
    decoding = PagedDecoding(decoder, num_blocks)
    rows: dict[int, Tensor] = {}
    for start in range(0, max(map(len, prompts)), CHUNK_TOKENS):
        parts = {i: prompt[start : start + CHUNK_TOKENS] for i, prompt in enumerate(prompts) if len(prompt) > start}
        rows |= {index: hidden[-1] for index, hidden in decoding.step(parts).items()}
    answers: list[list[int]] = [[] for _ in prompts]
    chosen_from: list[list[Tensor]] = [[] for _ in prompts]
    for step in range(NUM_NEW_TOKENS):
        logits = decoder.logits(torch.stack([rows[index] for index in range(len(prompts))]))
        for index, token in enumerate(logits.argmax(dim=-1).tolist()):
            answers[index].append(token)
            chosen_from[index].append(logits[index])
        if step < NUM_NEW_TOKENS - 1:
            last = {index: answer[-1:] for index, answer in enumerate(answers)}
            rows = {index: hidden[-1] for index, hidden in decoding.step(last).items()}
    return answers, [torch.stack(parts) for parts in chosen_from]


class Judge:
    """Transformers, asked once about each answer."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._logits: dict[tuple[int, ...], Tensor] = {}

    @torch.inference_mode()
    def logits(self, prompt: list[int], answer: list[int]) -> Tensor:
        """[NUM_NEW_TOKENS, vocab] at the places where ours chose."""
        tokens = (*prompt, *answer[:-1])
        if tokens not in self._logits:
            output = self._model(torch.tensor([tokens]), logits_to_keep=NUM_NEW_TOKENS, use_cache=False)
            self._logits[tokens] = output.logits[0]
        return self._logits[tokens]


@pytest.fixture(scope="module")
def judge(real_transformers_model: Any) -> Judge:
    return Judge(real_transformers_model)


def test_greedy_answers_are_those_of_transformers(
    real_model_path: Path, judge: Judge, library: NativeLibrary | None
) -> None:
    tokenizer = Tokenizer.load(real_model_path)
    prompts = encode_prompts(tokenizer)
    assert len(prompts) == 24 and sum(len(prompt) > 1000 for prompt in prompts) == 3
    answers, ours = generate(real_model_path, prompts, library)
    for index, (prompt, answer, our_logits) in enumerate(zip(prompts, answers, ours, strict=True)):
        their_logits = judge.logits(prompt, answer)
        torch.testing.assert_close(our_logits, their_logits, rtol=0, atol=LOGIT_TOLERANCE)
        best = their_logits.topk(2, dim=-1)
        gaps = best.values[:, 0] - best.values[:, 1]
        for place in (best.indices[:, 0] != torch.tensor(answer)).nonzero().flatten().tolist():
            assert gaps[place] < 2 * LOGIT_TOLERANCE, f"prompt {index}, token {place}: another token, and no near-tie"
    texts = [tokenizer.decode(answer, skip_special_tokens=False) for answer in answers]
    assert "Paris" in texts[0]
    assert len({tuple(answer) for answer in answers}) == 24
