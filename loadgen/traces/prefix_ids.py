"""Block ids for sources that tell how much of a prompt was there before, but not the blocks."""

from __future__ import annotations

import dataclasses
import itertools

DEFAULT_BLOCK_TOKENS = 64
"""Half a block of each shared prefix is lost on average; smaller blocks make long contexts into long lines."""


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What a conversation has said so far: a prompt and its answer."""

    ids: tuple[int, ...] = ()
    num_tokens: int = 0


class PrefixIds:
    """Names blocks so that two prompts share exactly the whole blocks of their common prefix."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._next = itertools.count()

    def prompt(self, context: Context, shared_tokens: int, in_tokens: int) -> tuple[int, ...]:
        """Ids of a prompt whose first `shared_tokens` tokens are those of `context`; the rest is new to the trace."""
        num_shared = min(shared_tokens, in_tokens, context.num_tokens) // self.block_tokens
        return self._filled(context.ids[:num_shared], in_tokens)

    def answered(self, prompt: tuple[int, ...], in_tokens: int, out_tokens: int) -> Context:
        """The context after an answer. The prompt's last block, if it was not full, is another one now."""
        num_tokens = in_tokens + out_tokens
        return Context(self._filled(prompt[: in_tokens // self.block_tokens], num_tokens), num_tokens)

    def _filled(self, ids: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
        num_new = -(-num_tokens // self.block_tokens) - len(ids)
        return ids + tuple(itertools.islice(self._next, num_new))
