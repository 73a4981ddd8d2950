"""What an instance can ever serve: a limit that the load does not move, and the way out of it."""

from __future__ import annotations

from scheduler.config import SchedulerConfig
from scheduler.request import RequestSpec


class ServableLimits:
    """The context and the pool. Choices need not run at the same time, so each must fit alone."""

    def __init__(self, config: SchedulerConfig, num_blocks: int, max_model_len: int) -> None:
        self._config = config
        self._num_blocks = num_blocks
        self._max_model_len = max_model_len

    @property
    def max_live_requests(self) -> int:
        return self._config.max_num_seqs + self._config.max_queued_requests

    def why_never(self, group: tuple[RequestSpec, ...]) -> str | None:
        """What of a group can never be served, for its client; None: nothing."""
        if len(group) > self.max_live_requests:
            return (
                f"{len(group)} choices are asked for, this server holds at most {self.max_live_requests} requests; "
                "ask for fewer choices or prompts at a time"
            )
        return next((why for spec in group if (why := self._why_never_alone(spec)) is not None), None)

    def _why_never_alone(self, spec: RequestSpec) -> str | None:
        num_tokens = spec.num_prompt_tokens + spec.max_tokens
        asked = f"{num_tokens} tokens ({spec.num_prompt_tokens} prompt + {spec.max_tokens} output)"
        if num_tokens > self._max_model_len:
            return (
                f"{asked} are asked for, the context holds {self._max_model_len}; {_way_out(spec, self._max_model_len)}"
            )
        block_size = self._config.block_size
        num_blocks = -(-spec.num_kv_tokens // block_size)
        if num_blocks > self._num_blocks:
            limit = self._num_blocks * block_size + (1 if spec.max_tokens else 0)  # the last output has no KV
            return (
                f"{asked} need {num_blocks} KV blocks of {block_size} tokens, this server has "
                f"{self._num_blocks}; {_way_out(spec, limit)}, or start the server with more KV cache memory"
            )
        return None


def _way_out(spec: RequestSpec, max_tokens_in_all: int) -> str:
    if spec.num_prompt_tokens + min(spec.max_tokens, 1) > max_tokens_in_all:
        return f"shorten the prompt to at most {max_tokens_in_all - min(spec.max_tokens, 1)} tokens"
    return f"lower max_tokens to at most {max_tokens_in_all - spec.num_prompt_tokens} or shorten the prompt"
