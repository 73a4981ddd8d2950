"""What a request with the machine to itself is expected to get."""

from __future__ import annotations

import pytest

from engine.alone import predict_alone
from scheduler.config import SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.step_features import StepFeatures
from tests.latency_builders import decodes, make_coefficients


@pytest.mark.parametrize(("max_model_len", "num_tokens"), [(8192, 1000), (1001, 1000), (301, 300), (2, 1)])
def test_a_prompt_is_computed_in_full_steps_and_then_decoded(max_model_len: int, num_tokens: int) -> None:
    """Chunk by chunk, as long as the longest step allows at the 95th percentile."""
    config = SchedulerConfig(max_num_batched_tokens=512, max_step_s=0.2, egress_s=0.002)
    model = LatencyModel(make_coefficients())
    expected_s, done = config.egress_s, 0
    while done < num_tokens:
        most = min(num_tokens - done, config.max_num_batched_tokens)
        chunk = model.max_chunk_tokens(StepFeatures(), done, most, config.max_step_s, NO_LINK)
        samples = done + chunk == num_tokens
        expected_s += model.mean_s(StepFeatures().with_chunk(chunk, done, samples=samples), NO_LINK)
        done += chunk
    found = predict_alone(model, config, max_model_len)
    assert found.prompt_tokens == num_tokens
    assert found.ttft_s == pytest.approx(expected_s, rel=0.05)
    assert found.tpot_s == model.mean_s(decodes(num_tokens + 1), NO_LINK)
