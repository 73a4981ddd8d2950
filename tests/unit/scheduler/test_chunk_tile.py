"""What chunks are rounded down to."""

from __future__ import annotations

import pytest

from scheduler.chunk_tile import ChunkTile
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.ramp import Ramp
from scheduler.step_features import StepFeatures
from tests.latency_builders import make_coefficients


@pytest.mark.parametrize("weights_s", [0.0, 0.005, 0.02, 0.08, 0.5])
@pytest.mark.parametrize("max_tokens", [16, 100, 512])
def test_it_is_the_smallest_whose_cost_per_token_is_near_the_best(weights_s: float, max_tokens: int) -> None:
    model = LatencyModel(make_coefficients(rows=Ramp(weights_s, (64.0, 256.0), (0.0, 1e-4))))
    sizes = [n for n in range(1, max_tokens + 1) if n % 16 == 0]
    costs = [model.mean_s(StepFeatures(n, 0, 0, 0, n * n / 2, 0), NO_LINK) / n for n in sizes]
    best = min(costs)
    tile = ChunkTile(model, 16, max_tokens)
    index = sizes.index(tile.tokens)
    assert costs[index] <= 1.2 * best
    assert all(cost > 1.2 * best for cost in costs[:index])


def test_heavier_weights_make_larger_tiles() -> None:
    tiles = [
        ChunkTile(LatencyModel(make_coefficients(rows=Ramp(weights_s, (256.0,), (1e-4,)))), 16, 512).tokens
        for weights_s in (0.0, 0.02, 0.5)
    ]
    assert tiles == sorted(tiles) and tiles[0] < tiles[-1]


def test_without_a_model_or_room_it_is_one_block() -> None:
    assert ChunkTile(None, 16, 512).tokens == 16
    assert ChunkTile(LatencyModel(make_coefficients()), 16, 8).tokens == 16
