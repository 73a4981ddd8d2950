"""How much one step computes: what its time depends on."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class StepLoad:
    """The composition of a step, in counts.

    Raises:
        ValueError: fewer rows than sequences, or fewer context tokens than rows.
    """

    num_tokens: int
    """Rows computed."""
    num_sequences: int
    num_context_tokens: int
    """Tokens with keys and values after the step, summed over the sequences."""

    def __post_init__(self) -> None:
        if not 1 <= self.num_sequences <= self.num_tokens <= self.num_context_tokens:
            raise ValueError(
                f"a step of {self.num_sequences} sequences, {self.num_tokens} tokens and {self.num_context_tokens} "
                "context tokens: each sequence computes at least one token, and each computed token is in its context"
            )

    @property
    def is_decode(self) -> bool:
        """Every sequence computes one token."""
        return self.num_tokens == self.num_sequences

    @staticmethod
    def decode(num_sequences: int, context_tokens: int) -> StepLoad:
        """One token each for sequences whose context then has `context_tokens`."""
        return StepLoad(num_sequences, num_sequences, num_sequences * context_tokens)
