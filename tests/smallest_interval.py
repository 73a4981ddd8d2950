"""The published way to choose an interval, by the product's prediction of a step."""

from __future__ import annotations

from collections.abc import Sequence

from offload.predict import predict_step
from offload.residency import interval_layout
from offload.streamed_unit import StreamedUnit


def smallest_interval(
    layer_s: Sequence[float],
    head_s: float,
    transfer_s: float,
    num_slots: int,
    limit_s: float,
    *,
    restart_s: float = 0.0,
    fixed_s: float = 0.0,
) -> int | None:
    """The smallest interval whose predicted step is within the limit; None: not even one streamed layer is.

    Args:
        transfer_s: of one layer, all of one size.
    """
    for interval in range(1, len(layer_s) + 1):
        units = [StreamedUnit(layer, 1) for layer in interval_layout(len(layer_s), interval)]
        step = predict_step(layer_s, head_s, units, num_slots, 1.0 / transfer_s, restart_s=restart_s, fixed_s=fixed_s)
        if step.step_s <= limit_s:
            return interval
    return None
