"""A choice's delta in the making: tokens are added until it is sent or handed over."""

from __future__ import annotations

from engine.messages import ChoiceDelta, TokenLogprob


class PendingDelta:
    """Collects what is new of one choice; adding deltas and building one equals the concatenation of them."""

    __slots__ = ("choice", "finish_reason", "group_id", "logprobs", "prompt_logprobs", "stop_token_id", "token_ids")

    def __init__(self, group_id: str, choice: int) -> None:
        self.group_id = group_id
        self.choice = choice
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.stop_token_id: int | None = None

    def add(self, delta: ChoiceDelta) -> None:
        """Append a later delta of the same choice."""
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_token_id = delta.stop_token_id

    @property
    def is_empty(self) -> bool:
        return not (self.token_ids or self.prompt_logprobs or self.finish_reason)

    def build(self) -> ChoiceDelta:
        return ChoiceDelta(
            group_id=self.group_id,
            choice=self.choice,
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            prompt_logprobs=tuple(self.prompt_logprobs),
            finish_reason=self.finish_reason,
            stop_token_id=self.stop_token_id,
        )
