"""The interval of Select-N: the last of every i layers is streamed. How small it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from offload.predict import predict_step
from offload.residency import interval_layout
from offload.streamed_unit import StreamedUnit


def hidden_interval(layer_s: float, transfer_s: float, num_slots: int = 2) -> int:
    """The smallest interval at which copies hide under computation, the head left aside.

    With two slots or more a group of i layers hides its copy in i layers' time. With one, a copy starts when the slot
    is released, so that i - 1 layers hide it.

    Raises:
        ValueError: a time or the number of slots is not positive.
    """
    if not layer_s > 0 or not transfer_s > 0 or num_slots < 1:
        raise ValueError(
            f"a layer of {layer_s} s, a transfer of {transfer_s} s, {num_slots} slots: all must be positive"
        )
    return math.ceil(transfer_s / layer_s) + (1 if num_slots == 1 else 0)


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
