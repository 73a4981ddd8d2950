"""A slower link in place of a faster computer: only the ratio of copying to computing counts for what can be hidden."""

from __future__ import annotations

from offload.hardware import find_hardware
from offload.hardware_cost import HardwareCost
from offload.model_shape import ModelShape
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad
from offload.transfer import Direction


def emulated_link_bytes_per_s(hardware_id: str, shape: ModelShape, cost: StepCost, load: StepLoad) -> float:
    """The speed at which copying a layer takes as many times its computing here as it would there, for this load.

    Args:
        cost: of this machine, with its link as it is.
        load: a decode step, as decoding is what streaming slows down.

    Raises:
        UnknownHardwareError: no such accelerator is in the table.
    """
    there = HardwareCost.effective(find_hardware(hardware_id), shape)
    copy_s = shape.mean_layer_bytes / there.link_bytes_per_s(Direction.H2D, Quantile.P50)
    ratio = copy_s / there.layer_s(load, Quantile.P50)
    return shape.mean_layer_bytes / (ratio * cost.layer_s(load, Quantile.P50))
