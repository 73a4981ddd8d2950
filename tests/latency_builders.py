"""Latency models of machines that do not exist."""

from __future__ import annotations

from typing import Any

from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkDirection, LinkSnapshot
from scheduler.ramp import Ramp
from scheduler.step_features import StepFeatures

STREAMING = LinkSnapshot(h2d=LinkDirection(1e9, 0.8e9), num_streamed_layers=10)


def make_coefficients(**changed: Any) -> LatencyCoefficients:
    """20 ms of weights, 1 ms a token of prefill beyond 32, half of that for a decode."""
    values: dict[str, Any] = {
        "rows": Ramp(0.02, (8.0, 32.0, 256.0), (1e-4, 2e-4, 5e-4)),
        "samples": Ramp(0.002, (1.0, 64.0), (1e-4, 5e-5)),
        "s_per_prefill_token": 5e-4,
        "s_per_decode": 1e-4,
        "s_per_decode_context_token": 1e-6,
        "s_per_prefill_pair": 2e-7,
        "s_per_skew_token": 1e-6,
        "sync_s": 1e-3,
        "decode_slowdown": 1.2,
        "prefill_slowdown": 1.05,
        "streamed_layer_bytes": 2_000_000,
        "prefill_step_tokens": 64,
        "p95_factors": (1.1, 1.2, 1.3),
    }
    return LatencyCoefficients(**(values | changed))


def decodes(*context_tokens: int) -> StepFeatures:
    """A step that decodes sequences of these contexts."""
    return StepFeatures(
        0, len(context_tokens), sum(context_tokens), max(context_tokens, default=0), 0.0, len(context_tokens)
    )


def teach(model: LatencyModel, features: StepFeatures, factor: float, num_steps: int) -> None:
    """Steps that take `factor` times what the coefficients say; the first of them may be of a new size."""
    for _ in range(num_steps):
        prediction = model.begin(features, LinkSnapshot())
        model.observe(prediction, factor * prediction.uncorrected_s)
