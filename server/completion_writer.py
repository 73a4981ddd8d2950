"""Text answers: text_completion, whole or in chunks, with the prompt before it where it is echoed."""

from __future__ import annotations

import dataclasses
from typing import Any

from server.answer import Envelope
from server.choice_text import ChoiceUpdate
from server.generation_plan import GenerationPlan
from server.logprob_text import CompletionLogprobs, CompletionLogprobWriter
from server.tokenizer import Tokenizer

KIND = "text_completion"


@dataclasses.dataclass(slots=True)
class _State:
    """One choice so far."""

    prompt_logprobs: list[CompletionLogprobs] = dataclasses.field(default_factory=list)
    """Of the echoed prompt, as they come in while it is computed."""
    prompt_writer: CompletionLogprobWriter | None = None
    writer: CompletionLogprobWriter | None = None
    has_started: bool = False
    """Its first piece was made, and with it the echo."""
    texts: list[str] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[CompletionLogprobs] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """New text of a choice with the log-probabilities of its tokens."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: list[CompletionLogprobs]


class CompletionWriter:
    """An `AnswerWriter`. An echoed prompt comes with the first tokens, or with the end where there are none."""

    def __init__(self, envelope: Envelope, plan: GenerationPlan, tokenizer: Tokenizer) -> None:
        self._envelope = envelope
        self._plan = plan
        self._tokenizer = tokenizer
        self._num_top = plan.sampling.num_logprobs
        self._states = [_State() for _ in range(plan.num_choices)]

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        is_first = not self._states[update.choice].has_started
        piece = self._piece(update)
        if piece is None:
            return []
        choice: dict[str, Any] = {
            "index": update.choice,
            "text": piece.text,
            "logprobs": self._join_logprobs(piece.logprobs),
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
        state.logprobs += piece.logprobs
        if update.finish_reason is not None:
            state.finish_reason, state.stop_reason = update.finish_reason, update.stop_reason

    def answer(self, usage: dict[str, Any]) -> dict[str, Any]:
        choices = [self._choice(index, state) for index, state in enumerate(self._states)]
        return self._envelope.wrap(KIND, choices, usage=usage)

    def _choice(self, index: int, state: _State) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": "".join(state.texts),
            "logprobs": self._join_logprobs(state.logprobs),
            "finish_reason": state.finish_reason,
            "stop_reason": state.stop_reason,
        }
        if self._plan.returns_token_ids:
            choice["token_ids"] = state.token_ids
            choice["prompt_token_ids"] = self._plan.prompt_of(index)
        return choice

    def _piece(self, update: ChoiceUpdate) -> _Piece | None:
        """What an update adds; None: nothing to show yet."""
        state = self._states[update.choice]
        if update.prompt_logprobs:
            state.prompt_logprobs.append(self._prompt_writer(state, update.choice).write(update.prompt_logprobs))
        if not update.token_ids and update.finish_reason is None:
            return None
        echo, logprobs = self._plan.echo_of(update.choice) or "", []
        if not state.has_started and echo and self._num_top is not None:
            self._prompt_writer(state, update.choice)  # a prompt of one token has no score to begin with
            logprobs, state.prompt_logprobs = state.prompt_logprobs, []
        if update.logprobs:
            logprobs.append(_shifted(self._writer(state).write(update.logprobs), len(echo)))
        text = update.text if state.has_started else echo + update.text
        state.has_started = True
        return _Piece(text, update.token_ids, logprobs)

    def _prompt_writer(self, state: _State, choice: int) -> CompletionLogprobWriter:
        if state.prompt_writer is None:
            state.prompt_writer = CompletionLogprobWriter(
                self._tokenizer, self._num_top or 0, skip_special_tokens=False
            )
            first = state.prompt_writer.first_prompt_token(self._plan.prompt_of(choice)[0])
            if self._plan.num_hidden_tokens:  # the begin token is not in the echoed text
                state.prompt_writer = CompletionLogprobWriter(
                    self._tokenizer, self._num_top or 0, skip_special_tokens=False
                )
            state.prompt_logprobs.append(first)
        return state.prompt_writer

    def _writer(self, state: _State) -> CompletionLogprobWriter:
        if state.writer is None:
            state.writer = CompletionLogprobWriter(
                self._tokenizer, self._num_top or 0, skip_special_tokens=self._plan.skips_special_tokens
            )
        return state.writer

    def _join_logprobs(self, parts: list[CompletionLogprobs]) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        return CompletionLogprobs(
            tokens=[token for part in parts for token in part.tokens],
            token_logprobs=[logprob for part in parts for logprob in part.token_logprobs],
            top_logprobs=[top for part in parts for top in part.top_logprobs],
            text_offset=[offset for part in parts for offset in part.text_offset],
        ).as_dict()


def _shifted(logprobs: CompletionLogprobs, num_chars: int) -> CompletionLogprobs:
    """With every token `num_chars` further into the text."""
    return dataclasses.replace(logprobs, text_offset=[offset + num_chars for offset in logprobs.text_offset])
