"""How fast the engine computes tokens, as its steps say: for estimates of when a full queue has room."""

from __future__ import annotations

from engine.messages import StepOutputs

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
RATE_DECAY = 0.98
"""Weight of the past per step: about 50 steps count, as in the scheduler's own estimate."""


class TokenRate:
    """Follows the engine's counters; a hook of `AsyncEngine.on_step`."""

    def __init__(self) -> None:
        self._num_seen_tokens = 0
        self._recent_tokens = 0.0
        self._recent_s = 0.0

    def on_step(self, outputs: StepOutputs) -> None:
        """One message of the engine. Counters that went back are of a new process."""
        stats = outputs.stats
        num_tokens = stats.prompt_tokens_computed + stats.recomputed_tokens + stats.generation_tokens
        num_new = num_tokens - self._num_seen_tokens
        self._num_seen_tokens = num_tokens
        if num_new > 0:  # also an idle engine sends messages
            self._recent_tokens = self._recent_tokens * RATE_DECAY + num_new
            self._recent_s = self._recent_s * RATE_DECAY + stats.step_s

    def retry_after_s(self, num_tokens: int) -> float:
        """Time to compute that many tokens, within bounds; the least where the rate is not known."""
        if self._recent_tokens == 0.0:
            return MIN_RETRY_S
        return min(max(num_tokens * self._recent_s / self._recent_tokens, MIN_RETRY_S), MAX_RETRY_S)
