"""What one request asks of the engine, and what it wants back: everything decided before the engine hears of it."""

from __future__ import annotations

import dataclasses

from engine.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True, slots=True)
class GenerationPlan:
    """`len(prompts) * n` choices; choice i has prompt i // n."""

    prompts: tuple[tuple[int, ...], ...]
    n: int
    sampling: SamplingParams
    stop_strings: tuple[str, ...] = ()
    includes_stop: bool = False
    """The stop string or stop token stays in the text."""
    skips_special_tokens: bool = True
    continues_prompt: bool = False
    """The text is read as a continuation of the prompt's: a leading space of it is kept."""
    echoed_texts: tuple[str, ...] | None = None
    """The text of each prompt, where the answer begins with it."""
    num_hidden_tokens: int = 0
    """Leading tokens of each prompt that the tokenizer added: they are not in its text."""
    cache_salt: str = ""
    retention: int = 1
    """As `engine.messages.AddGroup`."""
    streams: bool = False
    includes_usage: bool = False
    has_continuous_usage: bool = False
    returns_token_ids: bool = False

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def num_prompt_tokens(self) -> int:
        """As billed: each prompt once, whatever `n`."""
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_kept_logprobs(self) -> int:
        """Log-probabilities that the answer may collect before they are sent: alternatives and chosen tokens."""
        outputs = 0 if self.streams else self.num_choices * self.sampling.max_tokens
        prompts = self.n * self.num_prompt_tokens
        return outputs * _width(self.sampling.num_logprobs) + prompts * _width(self.sampling.num_prompt_logprobs)

    def prompt_of(self, choice: int) -> tuple[int, ...]:
        return self.prompts[choice // self.n]

    def echo_of(self, choice: int) -> str | None:
        return None if self.echoed_texts is None else self.echoed_texts[choice // self.n]


def _width(num_logprobs: int | None) -> int:
    return 0 if num_logprobs is None else num_logprobs + 1
