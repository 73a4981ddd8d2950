"""What one request with nothing beside it would be served in: shown at the start, beside the classes' targets."""

from __future__ import annotations

from engine.messages import AloneStats
from scheduler.config import SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.prefill_cost import PrefillCost
from scheduler.step_features import StepFeatures

PROMPT_TOKENS = 1000
"""Of the request, unless the server reads fewer."""


def predict_alone(model: LatencyModel, config: SchedulerConfig, max_model_len: int) -> AloneStats:
    """By the mean, as requests on an idle server are judged; all weights are on the device."""
    num_tokens = max(min(PROMPT_TOKENS, max_model_len - 1), 1)
    ttft_s = PrefillCost(model, config, max_model_len).alone_s(0, num_tokens, NO_LINK)
    decode = StepFeatures(0, 1, num_tokens + 1, num_tokens + 1, 0.0, 1)
    return AloneStats(prompt_tokens=num_tokens, ttft_s=ttft_s + config.egress_s, tpot_s=model.mean_s(decode, NO_LINK))
