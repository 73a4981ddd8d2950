"""One choice's tokens as text: half characters and possible stop strings are held back, what follows a stop is dropped.

Streamed and whole answers are made of the same updates, so their texts are equal.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from engine.messages import ChoiceDelta, TokenLogprob
from server.detokenizer import Detokenizer
from server.generation_plan import GenerationPlan
from server.stop_strings import StopStringFilter
from server.tokenizer import Tokenizer

MAX_PART_LOGPROBS = 2048
"""Log-probabilities, alternatives included, that are written in one go: a few milliseconds of work."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceUpdate:
    """What is new of one choice, as the client may see it."""

    choice: int
    text: str
    token_ids: tuple[int, ...]
    """Those that count: none past a stop string."""
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    finish_reason: str | None
    """stop | length | abort | error"""
    stop_reason: str | int | None
    """The stop string, or the token of `stop_token_ids`, that ended it."""

    def parts(self) -> Iterator[ChoiceUpdate]:
        """The same in several updates if it has many log-probabilities; the last has the text and the end."""
        records = self.prompt_logprobs or self.logprobs
        size = max(MAX_PART_LOGPROBS // (1 + len(records[0].top_token_ids)), 1) if records else 1
        if len(self.prompt_logprobs) + len(self.logprobs) <= size:
            yield self
            return
        empty = ChoiceUpdate(self.choice, "", (), (), (), None, None)
        for start in range(0, len(self.prompt_logprobs), size):
            yield dataclasses.replace(empty, prompt_logprobs=self.prompt_logprobs[start : start + size])
        last = max((len(self.logprobs) - 1) // size, 0) * size
        for start, end in itertools.pairwise(range(0, last + 1, size)):
            yield dataclasses.replace(empty, token_ids=self.token_ids[start:end], logprobs=self.logprobs[start:end])
        rest = dataclasses.replace(self, prompt_logprobs=(), logprobs=self.logprobs[last:])
        yield dataclasses.replace(rest, token_ids=self.token_ids[last:])


class ChoiceText:
    """The state of one choice; `push` takes its deltas in order and nothing after its finish."""

    def __init__(self, choice: int, plan: GenerationPlan, tokenizer: Tokenizer) -> None:
        self.choice = choice
        self.num_tokens = 0
        """Output tokens that count."""
        self.is_finished = False
        self.is_stopped_by_text = False
        """A stop string ended it: the engine does not know yet."""
        self._plan = plan
        prefix = plan.prompt_of(choice) if plan.continues_prompt else ()
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=plan.skips_special_tokens, prefix_ids=prefix)
        self._filter = StopStringFilter(plan.stop_strings, plan.includes_stop) if plan.stop_strings else None

    def push(self, delta: ChoiceDelta) -> ChoiceUpdate:
        """The update made of a delta; the choice is not finished yet."""
        texts: list[str] = []
        num_kept = 0
        for index, token_id in enumerate(delta.token_ids):
            num_kept += 1
            self.num_tokens += 1
            is_stop_token = delta.stop_token_id is not None and index == len(delta.token_ids) - 1
            if not is_stop_token or self._plan.includes_stop:
                texts.append(self._show(self._detokenizer.push((token_id,))))
            if self._stop_string is not None:
                break
        if delta.finish_reason is not None and self._stop_string is None:
            texts.append(self._flush())
        return self._update(delta, "".join(texts), num_kept)

    @property
    def _stop_string(self) -> str | None:
        return self._filter.stopped if self._filter is not None else None

    def _show(self, text: str) -> str:
        if self._filter is None or self.num_tokens < self._plan.sampling.min_tokens:
            return text  # before min_tokens nothing stops it, so no stop string may be begun there
        return self._filter.push(text)

    def _flush(self) -> str:
        text = self._show(self._detokenizer.flush())
        return text if self._filter is None else text + self._filter.flush()

    def _update(self, delta: ChoiceDelta, text: str, num_kept: int) -> ChoiceUpdate:
        finish_reason: str | None = delta.finish_reason
        stop_reason: str | int | None = None
        if self._stop_string is not None and finish_reason not in ("abort", "error"):
            self.is_stopped_by_text = True
            finish_reason, stop_reason = "stop", self._stop_string
        elif delta.stop_token_id in self._plan.sampling.stop_token_ids:
            stop_reason = delta.stop_token_id
        self.is_finished = finish_reason is not None
        return ChoiceUpdate(
            choice=self.choice,
            text=text,
            token_ids=delta.token_ids[:num_kept],
            logprobs=delta.logprobs[:num_kept],
            prompt_logprobs=delta.prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )
