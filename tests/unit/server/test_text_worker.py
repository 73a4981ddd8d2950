"""Text work off the event loop: bounded, cancellable, in time."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from server.chat import ChatTemplate, TemplateError
from server.gguf_tokenizer import parts_from_metadata
from server.text_worker import TextOverloaded, TextTimeout, TextWorkers
from server.tokenizer import PromptTooLong, Tokenizer
from tests.chat_templates import CHATML
from tests.tiny_tokenizers import SOURCE, gpt2_metadata, tiny_gpt2

DEADLINE_S = 30.0
USER = {"role": "user", "content": "hello"}
PLAIN = {"add_special_tokens": False, "parse_special": True}
CHAT: dict[str, Any] = {"add_generation_prompt": True, "continue_final_message": False, "kwargs": {}}


class _Gate(Tokenizer):
    """A tokenizer whose `encode` waits until it is let go."""

    opened: threading.Event
    entered: threading.Semaphore
    texts: list[str]

    def encode(self, text: str, **options: Any) -> list[int]:
        if hasattr(self, "opened"):
            self.texts.append(text)
            self.entered.release()
            assert self.opened.wait(DEADLINE_S)
        return super().encode(text, **options)


@pytest.fixture
def gate() -> Iterator[_Gate]:
    tokenizer = _Gate(parts_from_metadata(SOURCE, gpt2_metadata()))
    tokenizer.opened, tokenizer.entered, tokenizer.texts = threading.Event(), threading.Semaphore(0), []
    yield tokenizer
    tokenizer.opened.set()


async def _entered(gate: _Gate) -> None:
    assert await asyncio.to_thread(gate.entered.acquire, timeout=DEADLINE_S)


async def _until_idle(workers: TextWorkers) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while workers.num_pending:
            await asyncio.sleep(0)


def test_workers_give_what_the_tokenizer_and_the_template_give() -> None:
    tokenizer = tiny_gpt2()
    template = ChatTemplate(tokenizer, CHATML)

    async def scenario() -> None:
        async with TextWorkers(tokenizer, template) as workers:
            ids = await workers.encode("hello", **PLAIN)
            assert ids == tokenizer.encode("hello", **PLAIN)
            assert await workers.decode(ids, skip_special_tokens=True) == "hello"
            assert await workers.render([USER], **CHAT) == template.render([USER], **CHAT)
            with pytest.raises(TemplateError):
                await workers.render([], **CHAT)

    asyncio.run(scenario())


def test_model_without_a_template_cannot_chat() -> None:
    async def scenario() -> None:
        async with TextWorkers(tiny_gpt2()) as workers:
            with pytest.raises(ValueError, match="no chat template"):
                await workers.render([USER], **CHAT)

    asyncio.run(scenario())


def test_text_of_too_many_tokens_is_refused() -> None:
    tokenizer = tiny_gpt2()
    template = ChatTemplate(tokenizer, CHATML)

    async def refused(length: int, *, is_exact: bool, marked: str = "") -> None:
        text = "x" * length + marked
        turns = [{"role": "user", "content": text}]
        async with TextWorkers(tokenizer, template) as workers:
            for work in (
                workers.encode(text, max_tokens=100, **PLAIN),
                workers.render(turns, max_tokens=100, **CHAT),
            ):
                with pytest.raises(PromptTooLong, match="tokens, the limit is 100; shorten it") as caught:
                    await work
                assert caught.value.min_num_tokens > 100 == caught.value.max_tokens
                assert caught.value.is_exact is is_exact

    asyncio.run(refused(101, is_exact=True))
    asyncio.run(refused(101, is_exact=True, marked="</s>"))
    asyncio.run(refused(100_000, is_exact=False))
    asyncio.run(refused(100_000, is_exact=False, marked="</s>"))


def test_text_of_just_the_most_tokens_is_taken() -> None:
    tokenizer = tiny_gpt2()
    ids = tokenizer.encode("xyz" * 30, **PLAIN)
    assert tokenizer.encode("xyz" * 30, max_tokens=len(ids), **PLAIN) == ids
    with pytest.raises(PromptTooLong, match=f"has {len(ids)} tokens"):
        tokenizer.encode("xyz" * 30, max_tokens=len(ids) - 1, **PLAIN)


def test_markers_do_not_count_in_the_length() -> None:
    tokenizer = tiny_gpt2()
    template = ChatTemplate(tokenizer, "{{ messages[0].content }}")
    turns = [{"role": "user", "content": "</s>" * 1000}]
    ids = template.render(turns, **CHAT)
    assert template.render(turns, max_tokens=len(ids), **CHAT) == ids


def test_what_exceeds_the_queue_is_refused_at_once(gate: _Gate) -> None:
    async def scenario() -> None:
        async with TextWorkers(gate, num_threads=1, max_pending=2) as workers:
            tasks = [asyncio.create_task(workers.encode(text, **PLAIN)) for text in ("a", "b")]
            await _entered(gate)
            with pytest.raises(TextOverloaded, match="the limit is 2"):
                await workers.encode("c", **PLAIN)
            gate.opened.set()
            assert len(await asyncio.gather(*tasks)) == 2
            await _until_idle(workers)
            assert await workers.encode("c", **PLAIN)

    asyncio.run(scenario())


def test_cancelled_text_that_has_not_begun_is_dropped(gate: _Gate) -> None:
    async def scenario() -> None:
        async with TextWorkers(gate, num_threads=1) as workers:
            first = asyncio.create_task(workers.encode("first", **PLAIN))
            await _entered(gate)
            second = asyncio.create_task(workers.encode("second", **PLAIN))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert workers.num_pending == 1
            gate.opened.set()
            await first
            await _until_idle(workers)
            assert gate.texts == ["first"]

    asyncio.run(scenario())


def test_cancelled_text_that_has_begun_keeps_its_place_until_it_ends(gate: _Gate) -> None:
    async def scenario() -> None:
        async with TextWorkers(gate, num_threads=1, max_pending=1) as workers:
            task = asyncio.create_task(workers.encode("a", **PLAIN))
            await _entered(gate)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TextOverloaded):
                await workers.encode("b", **PLAIN)
            gate.opened.set()
            await _until_idle(workers)
            assert await workers.encode("b", **PLAIN)

    asyncio.run(scenario())


def test_text_that_takes_too_long_is_given_up(gate: _Gate) -> None:
    async def scenario() -> None:
        async with TextWorkers(gate, num_threads=1, timeout_s=0.01) as workers:
            with pytest.raises(TextTimeout, match=r"within 0\.01 s"):
                await workers.encode("a", **PLAIN)
            gate.opened.set()
            await _until_idle(workers)

    asyncio.run(scenario())


@pytest.fixture
def no_forced_switch() -> Iterator[None]:
    """Threads give the interpreter away only where they mean to."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(DEADLINE_S)
    yield
    sys.setswitchinterval(interval_s)


def test_event_loop_turns_while_a_megabyte_is_encoded(gate: _Gate, no_forced_switch: None) -> None:
    """An encoder that held the interpreter would let the loop turn only after the text is done."""
    gate.opened.set()

    async def scenario() -> int:
        async with TextWorkers(gate) as workers:
            task = asyncio.create_task(workers.encode("a1<|im_end|> " * 30_000, **PLAIN))
            turns = 0
            while not task.done():
                await asyncio.sleep(0)
                turns += bool(gate.texts)
            assert len(task.result()) >= 60_000
            return turns

    assert asyncio.run(scenario()) >= 50
