"""What a transfer refuses to be."""

from __future__ import annotations

import math

import pytest
import torch

from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer, TransferClass

BYTES = torch.zeros(8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (BYTES, BYTES[:4], "8 bytes into 4 bytes"),
        (BYTES.float(), BYTES, "source of a transfer is torch.float32"),
        (BYTES.view(2, 4), BYTES, r"\(2, 4\)"),
        (BYTES[:4], BYTES[::2], "target .* must be contiguous"),
    ],
)
def test_tensors_are_bytes_in_a_row_of_one_length(source: torch.Tensor, target: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Transfer(Direction.H2D, TransferClass.WEIGHTS, source, target, 0.0)


def test_deadline_is_a_time() -> None:
    with pytest.raises(ValueError, match="use infinity"):
        Transfer(Direction.H2D, TransferClass.WEIGHTS, BYTES, BYTES, math.nan)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"h2d_bytes_per_s": 0.0}, "h2d_bytes_per_s is 0.0"),
        ({"d2h_bytes_per_s": math.inf}, "d2h_bytes_per_s is inf"),
        ({"coupling": 1.5}, "coupling is 1.5"),
        ({"min_kv_link_share": 0.6}, "bounds of kv_link_share are 0.6 and 0.5"),
    ],
)
def test_config_names_what_is_out_of_bounds(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinkConfig(**{"h2d_bytes_per_s": 1e9, "d2h_bytes_per_s": 1e9, **options})
