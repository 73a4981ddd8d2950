"""Chat answers: chat.completion.chunk and chat.completion."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from server.answer import Envelope
from server.choice_text import ChoiceUpdate
from server.generation_plan import GenerationPlan
from server.json_pieces import JsonItems, Piece, array_pieces, object_pieces
from server.logprob_text import chat_logprobs
from server.tokenizer import Tokenizer

CHUNK, WHOLE = "chat.completion.chunk", "chat.completion"


@dataclasses.dataclass(slots=True)
class _Collected:
    texts: list[str] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: JsonItems = dataclasses.field(default_factory=JsonItems)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatWriter:
    """An `AnswerWriter`. Each choice begins with one chunk that has the role and no text, and ends with one reason."""

    def __init__(self, envelope: Envelope, plan: GenerationPlan, tokenizer: Tokenizer) -> None:
        self._envelope = envelope
        self._plan = plan
        self._tokenizer = tokenizer
        self._num_top = plan.sampling.num_logprobs
        self._started: set[int] = set()
        self._collected = [_Collected() for _ in range(plan.num_choices)]

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        if not update.token_ids and update.finish_reason is None:
            return []
        chunks = [] if update.choice in self._started else [self._role_chunk(update.choice)]
        delta = {"content": update.text} if update.text or update.finish_reason is None else {}
        choice: dict[str, Any] = {
            "index": update.choice,
            "delta": delta,
            "logprobs": self._wrap_logprobs(self._logprobs(update)),
            "finish_reason": update.finish_reason,
        }
        if update.finish_reason is not None:
            choice["stop_reason"] = update.stop_reason
        if self._plan.returns_token_ids:
            choice["token_ids"] = update.token_ids
        chunks.append(self._envelope.wrap(CHUNK, [choice]))
        return chunks

    def _role_chunk(self, index: int) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self._plan.returns_token_ids and not self._started:
            more["prompt_token_ids"] = self._plan.prompts[0]
        self._started.add(index)
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return self._envelope.wrap(CHUNK, [choice], **more)

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._envelope.wrap(CHUNK, [], usage=usage)

    def collect(self, update: ChoiceUpdate) -> None:
        collected = self._collected[update.choice]
        collected.texts.append(update.text)
        collected.token_ids += update.token_ids
        collected.logprobs.add(self._logprobs(update))
        if update.finish_reason is not None:
            collected.finish_reason, collected.stop_reason = update.finish_reason, update.stop_reason

    def answer(self, usage: dict[str, Any]) -> Iterator[Piece]:
        more: dict[str, Any] = {"usage": usage}
        if self._plan.returns_token_ids:
            more["prompt_token_ids"] = self._plan.prompts[0]
        choices = (self._choice(index, collected) for index, collected in enumerate(self._collected))
        return object_pieces(self._envelope.fields(WHOLE, **more), "choices", array_pieces(choices))

    def _choice(self, index: int, collected: _Collected) -> Iterator[Piece]:
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": "".join(collected.texts), "refusal": None},
            "finish_reason": collected.finish_reason,
            "stop_reason": collected.stop_reason,
        }
        if self._plan.returns_token_ids:
            choice["token_ids"] = collected.token_ids
        if self._num_top is None:
            return object_pieces(choice, "logprobs", (b"null",))
        logprobs = object_pieces({"refusal": None}, "content", collected.logprobs.pieces())
        return object_pieces(choice, "logprobs", logprobs)

    def _logprobs(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        return [] if self._num_top is None else chat_logprobs(self._tokenizer, update.logprobs, self._num_top)

    def _wrap_logprobs(self, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        return None if self._num_top is None else {"content": entries, "refusal": None}
