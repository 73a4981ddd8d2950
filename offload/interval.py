"""The interval of Select-N: the last of every i layers is streamed. How small it may be."""

from __future__ import annotations

import math


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
