"""How many tokens of a prompt are worth a step: what chunks are rounded down to."""

from __future__ import annotations

from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.step_features import StepFeatures

COST_TOLERANCE = 0.2
"""A tile's cost per token is at most this share above the best."""


class ChunkTile:
    """The smallest multiple of a block whose cost per token, alone in a step, is within 20 % of the best."""

    def __init__(self, model: LatencyModel | None, block_size: int, max_tokens: int) -> None:
        """
        Args:
            model: None: nothing is known of costs, and a tile is a block.
            max_tokens: of a step; the best is looked for up to here.
        """
        self.block_size = block_size
        self.tokens = block_size
        """At least one block."""
        self.s_per_token: float | None = None
        """At best, in steps of prefill alone; None: nothing is known of costs."""
        if model is None:
            return
        empty = StepFeatures()
        costs = {
            num_tokens: model.mean_s(empty.with_chunk(num_tokens, 0, samples=False), NO_LINK) / num_tokens
            for num_tokens in range(block_size, max(max_tokens, block_size) + 1, block_size)
        }
        self.s_per_token = min(costs.values())
        limit = self.s_per_token * (1.0 + COST_TOLERANCE)
        self.tokens = next(num_tokens for num_tokens, cost in costs.items() if cost <= limit)
