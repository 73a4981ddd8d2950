"""What a server expects of a link that nobody has measured before."""

from __future__ import annotations

import pytest
import torch

from engine.link_speed import GUESS, LinkSpeed, measure_link_speed
from offload.host_link import HostLink
from offload.link import LinkError
from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer, TransferClass


@pytest.mark.parametrize("h2d_gbps", [0.5, 1.0])
def test_a_link_of_a_known_speed_is_measured_as_that(h2d_gbps: float) -> None:
    """Within what a machine does that computes something else; the other way is half as fast."""
    opened: list[HostLink] = []

    def open_link(config: LinkConfig) -> HostLink:
        assert config is GUESS
        opened.append(HostLink(config, {Direction.H2D: h2d_gbps * 1e9, Direction.D2H: h2d_gbps * 0.5e9}))
        return opened[0]

    speed = measure_link_speed(open_link)
    assert 0.02 * h2d_gbps < speed.h2d_bytes_per_s / 1e9 < 1.05 * h2d_gbps
    assert 0.02 * h2d_gbps < speed.d2h_bytes_per_s / 0.5e9 < 1.05 * h2d_gbps
    assert 0.1 <= speed.coupling <= 1.0
    buffer = torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(LinkError, match="closed"):
        opened[0].submit(Transfer(Direction.H2D, TransferClass.KV_LOAD, buffer, buffer.clone(), 0.0))


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (None, (8e9, 6e9, 0.6)),
        (100e9, (8e9, 6e9, 0.6)),
        (6e9, (6e9, 6e9, 0.6)),
        (5e9, (5e9, 5e9, 0.72)),
        (1e9, (1e9, 1e9, 1.0)),
    ],
)
def test_a_slower_link_is_held_back_by_the_memory_less(cap: float | None, expected: tuple[float, float, float]) -> None:
    config = LinkSpeed(8e9, 6e9, 0.6).config(cap)
    assert (config.h2d_bytes_per_s, config.d2h_bytes_per_s, config.coupling) == pytest.approx(expected)
