"""A latency class as the planner sees it."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class ClassTarget:
    """The targets of one class, and what is done where they cannot be met."""

    name: str
    ttft_base_s: float
    ttft_per_1k_tokens_s: float
    """Added to `ttft_base_s` per 1,000 uncached prompt tokens."""
    tpot_s: float
    if_infeasible: Literal["refuse", "degrade", "queue"]
    """"queue": never closed; served as fast as it can be and called best effort."""

    def __post_init__(self) -> None:
        for name, low in (("ttft_base_s", 0.0), ("tpot_s", 0.0)):
            if not getattr(self, name) > low:
                raise ValueError(f"class {self.name!r}: {name} is {getattr(self, name)}, it must be above {low:g}")

    def ttft_s(self, num_prompt_tokens: int) -> float:
        """Target of the time to first token of a prompt of that many uncached tokens."""
        return self.ttft_base_s + self.ttft_per_1k_tokens_s * num_prompt_tokens / 1000.0

    @property
    def is_never_closed(self) -> bool:
        return self.if_infeasible == "queue"
