"""What the runner returns of a step, with token ids."""

from __future__ import annotations

import dataclasses

from engine.messages import TokenLogprob


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOutput:
    """Of one scheduled request."""

    request_id: str
    token_id: int | None
    """The sampled token; None where the step did not sample for it."""
    logprob: TokenLogprob | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt positions computed in this step, in order; position p's row scores token p + 1."""
    error: str | None = None
    """Why the model gave nothing usable for this request alone; it ends with ERROR and its blocks are not cached."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """Of one step, in the order of `SchedulerOutput.scheduled`."""

    step_id: int
    outputs: tuple[RequestOutput, ...]
