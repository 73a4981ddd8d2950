"""Text answers: text_completion, whole or in chunks, with the prompt before it where it is echoed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from server.answer import Envelope
from server.choice_text import ChoiceUpdate
from server.generation_plan import GenerationPlan
from server.json_pieces import Piece, array_pieces, object_pieces, raw_value
from server.logprob_text import CompletionLogprobWriter, EncodedLogprobs
from server.tokenizer import Tokenizer

KIND = "text_completion"


@dataclasses.dataclass(slots=True)
class _State:
    """One choice so far."""

    prompt_writer: CompletionLogprobWriter | None = None
    writer: CompletionLogprobWriter | None = None
    has_started: bool = False
    """Its first piece was made, and with it the echo."""
    texts: list[str] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: EncodedLogprobs = dataclasses.field(default_factory=EncodedLogprobs)
    """Those of the echoed prompt, as they come in while it is computed, then those of the output; of a stream only what
    was not sent yet."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class CompletionWriter:
    """An `AnswerWriter`. An echoed prompt comes with the first tokens, or with the end where there are none."""

    def __init__(self, envelope: Envelope, plan: GenerationPlan, tokenizer: Tokenizer) -> None:
        self._envelope = envelope
        self._plan = plan
        self._tokenizer = tokenizer
        self._num_top = plan.sampling.num_logprobs
        self._states = [_State() for _ in range(plan.num_choices)]

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        state = self._states[update.choice]
        is_first = not state.has_started
        text = self._take(state, update)
        if text is None:
            return []
        logprobs, state.logprobs = state.logprobs, EncodedLogprobs()
        choice: dict[str, Any] = {
            "index": update.choice,
            "text": text,
            "logprobs": None if self._num_top is None else raw_value(logprobs.pieces()),
            "finish_reason": update.finish_reason,
        }
        if update.finish_reason is not None:
            choice["stop_reason"] = update.stop_reason
        if self._plan.returns_token_ids:
            choice["token_ids"] = update.token_ids
            if is_first:
                choice["prompt_token_ids"] = self._plan.prompt_of(update.choice)
        return [self._envelope.wrap(KIND, [choice])]

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._envelope.wrap(KIND, [], usage=usage)

    def collect(self, update: ChoiceUpdate) -> None:
        state = self._states[update.choice]
        text = self._take(state, update)
        if text is None:
            return
        state.texts.append(text)
        state.token_ids += update.token_ids
        if update.finish_reason is not None:
            state.finish_reason, state.stop_reason = update.finish_reason, update.stop_reason

    def answer(self, usage: dict[str, Any]) -> Iterator[Piece]:
        choices = (self._choice(index, state) for index, state in enumerate(self._states))
        return object_pieces(self._envelope.fields(KIND, usage=usage), "choices", array_pieces(choices))

    def _choice(self, index: int, state: _State) -> Iterator[Piece]:
        choice: dict[str, Any] = {
            "index": index,
            "text": "".join(state.texts),
            "finish_reason": state.finish_reason,
            "stop_reason": state.stop_reason,
        }
        if self._plan.returns_token_ids:
            choice["token_ids"] = state.token_ids
            choice["prompt_token_ids"] = self._plan.prompt_of(index)
        return object_pieces(choice, "logprobs", (b"null",) if self._num_top is None else state.logprobs.pieces())

    def _take(self, state: _State, update: ChoiceUpdate) -> str | None:
        """Note an update's log-probabilities; the text that it adds, with the echo before the first one. None: nothing
        to show yet."""
        if update.prompt_logprobs:
            prompt_writer = self._prompt_writer(state, update.choice)
            state.logprobs.add(prompt_writer.write(update.prompt_logprobs))
        if not update.token_ids and update.finish_reason is None:
            return None
        echo = self._plan.echo_of(update.choice) or ""
        if not state.has_started and echo and self._num_top is not None:
            self._prompt_writer(state, update.choice)  # a prompt of one token has no score to begin with
        if update.logprobs:
            state.logprobs.add(self._writer(state).write(update.logprobs), len(echo))
        text = update.text if state.has_started else echo + update.text
        state.has_started = True
        return text

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
            state.logprobs.add(first)
        return state.prompt_writer

    def _writer(self, state: _State) -> CompletionLogprobWriter:
        if state.writer is None:
            state.writer = CompletionLogprobWriter(
                self._tokenizer, self._num_top or 0, skip_special_tokens=self._plan.skips_special_tokens
            )
        return state.writer
