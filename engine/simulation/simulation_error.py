"""Why a simulation cannot be run."""

from __future__ import annotations

from engine.errors import EngineError


class SimulationError(EngineError):
    """There is nothing to simulate with; names the way out."""
