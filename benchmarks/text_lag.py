"""How long the event loop stands still while text of one megabyte is tokenized or rendered beside it.

    python benchmarks/text_lag.py MODEL

MODEL is a GGUF file or a directory with a tokenizer and a chat template.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from server.chat import ChatTemplate
from server.text_worker import TextWorkers
from server.tokenizer import Tokenizer

NUM_CHARS = 1_000_000
TICK_S = 0.001


def _texts() -> dict[str, str]:
    rng = random.Random(1)
    parts = {
        "words": "the quick brown fox ",
        "one letter": "a",
        "digits": "1",
        "spaces": " ",
        "line breaks": " \n",
        "Chinese": "漢字",
        "emoji": "👨‍👩‍👧",
        "control tokens": "<|im_end|>",
        "begun control tokens": "<|im_",
        "lone surrogates": "\ud83d",
    }
    texts = {name: (part * NUM_CHARS)[:NUM_CHARS] for name, part in parts.items()}
    texts["random letters"] = "".join(rng.choices("abcdefghij", k=NUM_CHARS))
    return texts


async def _max_lag_s(work: Awaitable[list[int]]) -> tuple[float, float, int]:
    """Longest turn of the loop beyond its sleep, seconds of the work, and its number of tokens."""
    task = asyncio.ensure_future(work)
    start_s = last_s = time.perf_counter()
    lag_s = 0.0
    while not task.done():
        await asyncio.sleep(TICK_S)
        now_s = time.perf_counter()
        lag_s, last_s = max(lag_s, now_s - last_s - TICK_S), now_s
    return lag_s, last_s - start_s, len(task.result())


def _works(workers: TextWorkers) -> dict[str, Callable[[], Awaitable[list[int]]]]:
    chat: dict[str, Any] = {"add_generation_prompt": True, "continue_final_message": False, "kwargs": {}}
    works: dict[str, Callable[[], Awaitable[list[int]]]] = {}
    for name, text in _texts().items():
        works[f"encode, {name}"] = lambda text=text: workers.encode(text, add_special_tokens=True, parse_special=True)
        turn = [{"role": "user", "content": text}]
        works[f"chat, {name}"] = lambda turn=turn: workers.render(turn, **chat)
    turns = [{"role": role, "content": "hello there"} for role in ("user", "assistant")] * 10_000
    works["chat, 20 000 turns"] = lambda: workers.render(turns, **chat)
    return works


async def _run(path: str) -> None:
    start_s = time.perf_counter()
    tokenizer = Tokenizer.load(path)
    if tokenizer.chat_template is None:
        sys.exit(f"{path}: no chat template")
    print(f"loaded in {time.perf_counter() - start_s:.2f} s")
    print(f"{'work':34}{'tokens':>10}{'seconds':>10}{'max lag ms':>12}")
    async with TextWorkers(tokenizer, ChatTemplate(tokenizer, tokenizer.chat_template)) as workers:
        for name, work in _works(workers).items():
            lag_s, work_s, num_tokens = await _max_lag_s(work())
            print(f"{name:34}{num_tokens:10}{work_s:10.2f}{lag_s * 1e3:12.1f}")


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1]))
