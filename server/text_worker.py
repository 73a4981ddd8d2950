"""Tokenizing and rendering off the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

from server.chat import ChatTemplate
from server.tokenizer import PromptTooLong as PromptTooLong  # what `encode` and `render` raise
from server.tokenizer import Tokenizer

T = TypeVar("T")


class TextOverloaded(RuntimeError):
    """Too many texts wait for a worker; the caller answers 503 and names a time to retry."""


class TextTimeout(RuntimeError):
    """A text waited or took too long."""


class TextWorkers:
    """A few threads that turn text into tokens and back, and a bound on how much may wait for them.

    The tokenizer's own work runs without the interpreter's lock; a template is Python and shares it, a switch interval
    (5 ms) at a time. A caller that is cancelled or timed out leaves at once; work that has not begun is dropped, work
    that has begun keeps its place until it ends, so that abandoned work cannot pile up.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None = None,
        *,
        num_threads: int = 2,
        max_pending: int = 256,
        timeout_s: float = 30.0,
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="text")
        self._max_pending = max_pending
        self._timeout_s = timeout_s
        self._pending: set[Future[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what waits; threads end with the work they have."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def num_pending(self) -> int:
        """Texts that wait or are worked on."""
        return len(self._pending)

    async def encode(
        self, text: str, *, add_special_tokens: bool, parse_special: bool, max_tokens: int | None = None
    ) -> list[int]:
        """See `Tokenizer.encode`.

        Raises:
            PromptTooLong: it has more than `max_tokens` tokens.
            TextOverloaded, TextTimeout: see there.
        """
        return await self._run(
            functools.partial(
                self.tokenizer.encode,
                text,
                add_special_tokens=add_special_tokens,
                parse_special=parse_special,
                max_tokens=max_tokens,
            )
        )

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """See `Tokenizer.decode`. Raises TextOverloaded, TextTimeout."""
        return await self._run(
            functools.partial(self.tokenizer.decode, ids, skip_special_tokens=skip_special_tokens),
        )

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
        max_tokens: int | None = None,
    ) -> list[int]:
        """The prompt ids of a conversation, see `ChatTemplate.render`.

        Raises:
            TemplateError, PromptTooLong, TextOverloaded, TextTimeout: see there.
            ValueError: the model has no chat template.
        """
        if self.chat_template is None:
            raise ValueError("the model has no chat template; use the completions endpoint")
        return await self._run(
            functools.partial(
                self.chat_template.render,
                messages,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                kwargs=kwargs,
                max_tokens=max_tokens,
            )
        )

    async def _run(self, work: Callable[[], T]) -> T:
        if len(self._pending) >= self._max_pending:
            raise TextOverloaded(f"{len(self._pending)} texts wait to be tokenized, the limit is {self._max_pending}")
        future = self._executor.submit(work)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)  # in whatever thread ends it; one set operation is atomic
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise TextTimeout(f"the text was not tokenized within {self._timeout_s:g} s; send less") from None
