"""One admitted group: the engine's deltas become updates of text until every choice has its finish."""

from __future__ import annotations

from engine.client import GroupStream
from server.choice_text import ChoiceText, ChoiceUpdate
from server.errors import ApiError, overloaded, server_error
from server.generation_plan import GenerationPlan
from server.loop_share import LoopShare
from server.tokenizer import Tokenizer


class Generation:
    """Reads a `GroupStream`, whose owner aborts what is left when it goes.

    `has_tiers`: KV blocks are kept on the host or on the disk too, and the usage says where cached tokens were.
    """

    def __init__(
        self, stream: GroupStream, plan: GenerationPlan, tokenizer: Tokenizer, *, has_tiers: bool = False
    ) -> None:
        self.plan = plan
        self.share = LoopShare()
        """Of the event loop; whoever writes the updates goes on with it."""
        self._stream = stream
        self._has_tiers = has_tiers
        self._choices = [ChoiceText(choice, plan, tokenizer) for choice in range(plan.num_choices)]
        self._num_unfinished = plan.num_choices

    async def next_updates(self) -> list[ChoiceUpdate]:
        """Everything new, one update a choice; empty: all choices have finished.

        Raises:
            ApiError: the engine gave up a choice.
            EngineDied, SlowConsumer: as `GroupStream` says.
        """
        updates: list[ChoiceUpdate] = []
        while self._num_unfinished and not updates:
            deltas = await anext(self._stream, None)
            if deltas is None:
                raise _given_up("abort")
            self.share.begin()
            for delta in deltas:
                choice = self._choices[delta.choice]
                if not choice.is_finished:
                    updates.append(choice.push(delta))
                    self._after(choice, updates[-1])
                    await self.share.pause()
        return updates

    def _after(self, choice: ChoiceText, update: ChoiceUpdate) -> None:
        if choice.is_stopped_by_text:
            self._stream.abort_choice(choice.choice, choice.num_tokens)
        if choice.is_finished:
            self._num_unfinished -= 1
        if update.finish_reason in ("abort", "error"):
            raise _given_up(update.finish_reason)

    def usage(self) -> dict[str, object]:
        """Tokens so far: each prompt once, and the output that counts."""
        num_prompt = self.plan.num_prompt_tokens
        num_output = sum(choice.num_tokens for choice in self._choices)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": self._prompt_details(),
        }

    def _prompt_details(self) -> dict[str, object]:
        details: dict[str, object] = {"cached_tokens": self._stream.num_cached_tokens}
        if self._has_tiers:
            details["cached_tokens_by_tier"] = self._stream.cached_tokens_by_tier
        return details


def _given_up(finish_reason: str) -> ApiError:
    """The engine ended a choice that nobody here asked it to end."""
    if finish_reason == "error":
        return server_error("the engine failed on this request", "engine_error")
    return overloaded("the engine ended this request before it was complete: retry", "aborted")
