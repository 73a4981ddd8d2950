"""What the weights of one step took of the link."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class StepTransfers:
    """Of the loads that a step has used."""

    num_bytes: int = 0
    num_loads: int = 0
    hidden_s: float = 0.0
    """Copying under computation."""
    exposed_s: float = 0.0
    """Computation waiting for copies."""
