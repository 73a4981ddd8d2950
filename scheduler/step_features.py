"""What the time of a step depends on, counted from its composition.

Source: the features are those of Vidur (Agrawal et al., MLSys 2024) and DistServe (Zhong et al., OSDI 2024) brought to
one linear model, with the spread of contexts that variable-length decode attention pays for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from scheduler.output import ScheduledRequest


@dataclasses.dataclass(frozen=True, slots=True)
class StepFeatures:
    """Counts of one step. A request that computes one token and samples counts as a decode, whatever the token is."""

    prefill_tokens: int = 0
    num_decodes: int = 0
    decode_context_tokens: int = 0
    """Keys that the decodes read, over all of them."""
    max_decode_context_tokens: int = 0
    prefill_pairs: float = 0.0
    """Sum over chunks of chunk * (prefix + chunk / 2): pairs of a query and a key."""
    num_samples: int = 0

    @property
    def num_rows(self) -> int:
        """Tokens computed."""
        return self.prefill_tokens + self.num_decodes

    @property
    def skew_tokens(self) -> float:
        """Longest context of a decode beyond their mean."""
        if not self.num_decodes:
            return 0.0
        return self.max_decode_context_tokens - self.decode_context_tokens / self.num_decodes

    @staticmethod
    def of(scheduled: Iterable[ScheduledRequest]) -> StepFeatures:
        """Of the parts of a step, in one pass."""
        prefill_tokens = num_decodes = context = longest = num_samples = 0
        pairs = 0.0
        for part in scheduled:
            num_tokens, position = part.num_tokens, part.num_computed_tokens
            if part.samples:
                num_samples += 1
                if num_tokens == 1:
                    num_decodes += 1
                    context += position + 1
                    if position >= longest:
                        longest = position + 1
                    continue
            prefill_tokens += num_tokens
            pairs += num_tokens * (position + num_tokens / 2)
        return StepFeatures(prefill_tokens, num_decodes, context, longest, pairs, num_samples)

    def decodes_only(self) -> StepFeatures:
        """This step without its prefill."""
        return StepFeatures(
            0, self.num_decodes, self.decode_context_tokens, self.max_decode_context_tokens, 0.0, self.num_decodes
        )

    def with_chunk(self, num_tokens: int, prefix_tokens: int, *, samples: bool) -> StepFeatures:
        """This step and `num_tokens` tokens of one more prefill, behind `prefix_tokens` computed ones."""
        return StepFeatures(
            self.prefill_tokens + num_tokens,
            self.num_decodes,
            self.decode_context_tokens,
            self.max_decode_context_tokens,
            self.prefill_pairs + num_tokens * (prefix_tokens + num_tokens / 2),
            self.num_samples + samples,
        )
