"""Stand-ins for the model and the clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engine.messages import TokenLogprob
from engine.model_runner_output import ModelRunnerOutput, RequestOutput
from engine.sequence import Sequence
from scheduler.output import ScheduledRequest, SchedulerOutput

VOCAB_SIZE = 1000
EOS_TOKEN_ID = 2
ERROR_TOKEN_ID = 3
"""A request with it in its prompt fails alone."""
CRASH_TOKEN_ID = 4
"""A step that computes it raises."""
FIRST_ORDINARY_TOKEN_ID = 10


class HandClock:
    """Moved by hand; each look may also move it by `tick_s`, so that durations are not zero."""

    def __init__(self, start_s: float = 1000.0, tick_s: float = 0.0) -> None:
        self._now_s = start_s
        self._tick_s = tick_s

    def now_s(self) -> float:
        self._now_s += self._tick_s
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


class InjectedFault(RuntimeError):
    """What a FakeRunner raises when it was told to."""


def fake_token(context: npt.NDArray[np.int32], choice: int) -> int:
    """The token that FakeRunner samples after a context: never one of the special ones."""
    mixed = int(context[-1]) * 31 + int(context[0]) * 3 + len(context) * 7 + choice * 101
    return FIRST_ORDINARY_TOKEN_ID + mixed % (VOCAB_SIZE - FIRST_ORDINARY_TOKEN_ID)


def fake_output(prompt: tuple[int, ...], num_tokens: int, choice: int = 0) -> tuple[int, ...]:
    """The tokens that FakeRunner generates after a prompt; other ones for each choice of a group."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(fake_token(np.array(tokens, dtype=np.int32), choice))
    return tuple(tokens[len(prompt) :])


class FakeRunner:
    """Runs no model: the "keys and values" of a position are its token id, kept in real blocks.

    With `check_kv`, every context is read back through the block table before it is used: a block that was shared,
    copied or given away wrongly fails the test that caused it.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int = 64,
        *,
        check_kv: bool = True,
        before_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_steps = 0
        self.fail_steps: set[int] = set()
        """Numbers of the `execute` calls, from 0 on, that raise."""
        self._kv = np.full((num_blocks, block_size), -1, dtype=np.int32)
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._check_kv = check_kv
        self._before_step = before_step
        self._sequences: dict[str, Sequence] = {}
        self._tables: dict[str, list[int]] = {}

    @property
    def blocks(self) -> npt.NDArray[np.int32]:
        """[num_blocks, block_size]: the keys and values themselves."""
        return self._kv

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def add(self, sequence: Sequence) -> None:
        assert sequence.request_id not in self._sequences, f"{sequence.request_id} was added twice"
        self._sequences[sequence.request_id] = sequence
        assert len(self._sequences) <= self._max_num_seqs, "more sequences than the runner has rows"

    def remove(self, request_id: str) -> None:
        self._sequences.pop(request_id, None)
        self._tables.pop(request_id, None)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._before_step()
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if step in self.fail_steps:
            raise InjectedFault(f"step {step}")
        for copy in output.block_copies:
            self._kv[copy.target] = self._kv[copy.source]
        for scheduled in output.scheduled:
            self._compute(scheduled)
        return ModelRunnerOutput(output.step_id, tuple(self._answer(scheduled) for scheduled in output.scheduled))

    def _compute(self, scheduled: ScheduledRequest) -> None:
        table = self._tables.setdefault(scheduled.request_id, [])
        if scheduled.first_block == 0 and scheduled.new_block_ids:
            table.clear()
        assert scheduled.first_block == len(table) or not scheduled.new_block_ids, "a hole in the block table"
        table.extend(scheduled.new_block_ids)
        tokens = self._sequences[scheduled.request_id].token_ids
        end = scheduled.num_computed_tokens + scheduled.num_tokens
        assert end <= len(tokens), "a token is computed that is not known"
        if CRASH_TOKEN_ID in tokens[scheduled.num_computed_tokens : end]:
            raise InjectedFault(f"{scheduled.request_id} holds token {CRASH_TOKEN_ID}")
        for position in range(scheduled.num_computed_tokens, end):
            block, offset = divmod(position, self._block_size)
            self._kv[table[block], offset] = tokens[position]

    def _answer(self, scheduled: ScheduledRequest) -> RequestOutput:
        sequence = self._sequences[scheduled.request_id]
        tokens = sequence.token_ids
        end = scheduled.num_computed_tokens + scheduled.num_tokens
        if ERROR_TOKEN_ID in tokens[: sequence.num_prompt_tokens]:
            return RequestOutput(scheduled.request_id, None, error="injected")
        if self._check_kv:
            stored = self._kv[self._tables[scheduled.request_id]].reshape(-1)[:end]
            assert np.array_equal(stored, tokens[:end]), f"{scheduled.request_id}: wrong keys and values"
        token_id = logprob = None
        if scheduled.samples:
            assert end == len(tokens), "a sample from a row that is not the last"
            token_id = fake_token(tokens, sequence.choice)
            if sequence.sampling.num_logprobs is not None:
                logprob = TokenLogprob(token_id, -0.5, (token_id,), (-0.5,))
        prompt_logprobs: tuple[TokenLogprob, ...] = ()
        if sequence.sampling.num_prompt_logprobs is not None:
            rows = range(scheduled.num_computed_tokens, min(end, sequence.num_prompt_tokens - 1))
            prompt_logprobs = tuple(TokenLogprob(int(tokens[row + 1]), -row / 1000.0, (), ()) for row in rows)
        return RequestOutput(scheduled.request_id, token_id, logprob, prompt_logprobs)
