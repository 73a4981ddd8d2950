"""An emulated accelerator has the ratio of copying to computing of the real one, whatever computes here."""

from __future__ import annotations

import pytest

from offload.emulation import emulated_link_bytes_per_s
from offload.hardware import HARDWARE, UnknownHardwareError
from offload.known_models import known_shape
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from tests.offload_shapes import FlatCost


@pytest.mark.parametrize("gpu", sorted(HARDWARE))
@pytest.mark.parametrize("layer_s", [1e-4, 5e-3])
def test_the_ratio_is_that_of_the_table(gpu: str, layer_s: float) -> None:
    """By hand: at 8 rows a layer there is bound by memory, and its KV comes on top."""
    shape, load, hardware = known_shape("opt-6.7b"), StepLoad.decode(8, 1024), HARDWARE[gpu]
    kv_bytes = 8 * 1024 * shape.kv_bytes_per_token / shape.num_layers
    there_s = (shape.layer_bytes[0] + kv_bytes) / hardware.memory_bytes_per_s + hardware.layer_fixed_s
    copy_there_s = shape.layer_bytes[0] / hardware.link.h2d_bytes_per_s
    cost = FlatCost(layer=layer_s)
    here = shape.layer_bytes[0] / emulated_link_bytes_per_s(gpu, shape, cost, load)
    assert here / cost.layer_s(load, Quantile.P50) == pytest.approx(copy_there_s / there_s, rel=1e-9)


def test_what_is_not_in_the_table_is_told() -> None:
    with pytest.raises(UnknownHardwareError, match="gh200"):
        emulated_link_bytes_per_s("c64", known_shape("opt-6.7b"), FlatCost(), StepLoad.decode(1, 64))
