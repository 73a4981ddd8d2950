"""Text answers: text_completion, whole or in chunks, with the prompt before it where it is echoed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from engine.messages import TokenLogprob
from server.answer import Envelope
from server.choice_text import ChoiceUpdate
from server.detokenizer import Detokenizer
from server.generation_plan import GenerationPlan
from server.logprob_format import CompletionLogprobsTable, LogprobFormat, finite
from server.tokenizer import Tokenizer

KIND = "text_completion"


@dataclasses.dataclass(slots=True)
class _State:
    """One choice so far."""

    prompt: CompletionLogprobsTable = dataclasses.field(default_factory=CompletionLogprobsTable)
    """Of the echoed prompt's tokens, as they come in while the prompt is computed."""
    num_prompt_chars: int = 0
    prompt_detokenizer: Detokenizer | None = None
    has_started: bool = False
    """Its first piece was made, and with it the echo."""
    texts: list[str] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: CompletionLogprobsTable = dataclasses.field(default_factory=CompletionLogprobsTable)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """New text of a choice with the log-probabilities of its tokens."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: CompletionLogprobsTable


class CompletionWriter:
    """An `AnswerWriter`. An echoed prompt comes with the first tokens, or with the end where there are none."""

    def __init__(self, envelope: Envelope, plan: GenerationPlan, tokenizer: Tokenizer) -> None:
        self._envelope = envelope
        self._plan = plan
        self._tokenizer = tokenizer
        self._format = LogprobFormat(tokenizer)
        self._states = [_State() for _ in range(plan.num_choices)]

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        is_first = not self._states[update.choice].has_started
        piece = self._piece(update)
        if piece is None:
            return []
        choice: dict[str, Any] = {
            "index": update.choice,
            "text": piece.text,
            "logprobs": piece.logprobs.as_json() if self._has_logprobs else None,
            "finish_reason": update.finish_reason,
        }
        if update.finish_reason is not None:
            choice["stop_reason"] = update.stop_reason
        if self._plan.returns_token_ids:
            choice["token_ids"] = piece.token_ids
            if is_first:
                choice["prompt_token_ids"] = self._plan.prompt_of(update.choice)
        return [self._envelope.wrap(KIND, [choice])]

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._envelope.wrap(KIND, [], usage=usage)

    def collect(self, update: ChoiceUpdate) -> None:
        state = self._states[update.choice]
        piece = self._piece(update)
        if piece is None:
            return
        state.texts.append(piece.text)
        state.token_ids += piece.token_ids
        state.logprobs.extend(piece.logprobs)
        if update.finish_reason is not None:
            state.finish_reason, state.stop_reason = update.finish_reason, update.stop_reason

    def answer(self, usage: dict[str, Any]) -> dict[str, Any]:
        choices = [self._choice(index, state) for index, state in enumerate(self._states)]
        return self._envelope.wrap(KIND, choices, usage=usage)

    def _choice(self, index: int, state: _State) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": "".join(state.texts),
            "logprobs": state.logprobs.as_json() if self._has_logprobs else None,
            "finish_reason": state.finish_reason,
            "stop_reason": state.stop_reason,
        }
        if self._plan.returns_token_ids:
            choice["token_ids"] = state.token_ids
            choice["prompt_token_ids"] = self._plan.prompt_of(index)
        return choice

    @property
    def _has_logprobs(self) -> bool:
        return self._plan.sampling.num_logprobs is not None

    def _piece(self, update: ChoiceUpdate) -> _Piece | None:
        """What an update adds; None: nothing to show yet."""
        state = self._states[update.choice]
        if update.prompt_logprobs:
            self._score_prompt(state, update.choice, update.prompt_logprobs)
        if not update.token_ids and update.finish_reason is None:
            return None
        echo, table = "", CompletionLogprobsTable()
        if self._plan.echoed_texts is not None:
            echo = self._plan.echoed_texts[update.choice // self._plan.n]
            if not state.has_started and self._has_logprobs:
                self._score_prompt(state, update.choice, ())
                table, state.prompt = state.prompt, table
        for item, offset in zip(update.logprobs, update.text_offsets, strict=False):
            table.add(
                self._format.text(item.token_id), finite(item.logprob), self._format.top(item), len(echo) + offset
            )
        text = update.text if state.has_started else echo + update.text
        state.has_started = True
        return _Piece(text, update.token_ids, table)

    def _score_prompt(self, state: _State, choice: int, scores: Sequence[TokenLogprob]) -> None:
        """Add the next prompt tokens to the choice's table; nothing scores the first one."""
        if state.prompt_detokenizer is None:
            state.prompt_detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=False)
            self._add_prompt_token(state, self._plan.prompt_of(choice)[0], None)
        for score in scores:
            self._add_prompt_token(state, score.token_id, score)

    def _add_prompt_token(self, state: _State, token_id: int, score: TokenLogprob | None) -> None:
        assert state.prompt_detokenizer is not None
        is_hidden = len(state.prompt.tokens) < self._plan.num_hidden_tokens
        state.prompt.add(
            self._format.text(token_id),
            finite(score.logprob) if score else None,
            self._format.top(score) if score else None,
            state.num_prompt_chars,
        )
        if not is_hidden:
            state.num_prompt_chars += len(state.prompt_detokenizer.push((token_id,)))
