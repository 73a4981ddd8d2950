"""How the layers of one kind attend; most decoders have one kind, some alternate between two."""

from __future__ import annotations

import dataclasses
import math

from kernels.rotary import FrequencyDivisors, LongScaling, Rope


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionKind:
    """What layers of one kind have in common."""

    rope: Rope
    sliding_window: int | None = None
    """Last positions that a query sees, itself included; None: all."""

    def check_fits(self, head_dim: int) -> None:
        """Raises ValueError: a number is impossible for heads of that dimension."""
        rope = self.rope
        if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= head_dim:
            raise ValueError(
                f"rotary_dim is {rope.rotary_dim}, it must be even, at least 2 and at most head_dim ({head_dim})"
            )
        for name, number in (("rope_theta", rope.theta), ("the rotation's amplitude", rope.amplitude)):
            if not (math.isfinite(number) and number > 0):
                raise ValueError(f"{name} is {number}, it must be positive and finite")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}, it must be at least 1")
        for divisors in self._divisors():
            if len(divisors) != rope.rotary_dim // 2 or not all(math.isfinite(d) and d > 0 for d in divisors):
                raise ValueError(
                    f"{len(divisors)} frequency divisors for {rope.rotary_dim} rotated dimensions: it takes one for "
                    f"two dimensions, positive and finite"
                )

    def _divisors(self) -> tuple[tuple[float, ...], ...]:
        match self.rope.scaling:
            case FrequencyDivisors(divisors):
                return (divisors,)
            case LongScaling(short_divisors=short, long_divisors=long):
                return (short, long)
        return ()

    def for_context(self, context_tokens: int) -> AttentionKind:
        """Where no sequence is longer than `context_tokens`."""
        scaling = self.rope.scaling
        if not isinstance(scaling, LongScaling):
            return self
        scaling = dataclasses.replace(scaling, context_tokens=context_tokens)
        return dataclasses.replace(self, rope=dataclasses.replace(self.rope, scaling=scaling))
