"""Where a decoder waits, in the midst of a step, for keys and values that are still on their way."""

from __future__ import annotations

from typing import Protocol


class LayerGate(Protocol):
    """Blocks of a step may arrive by layers: those of a layer are waited for before it, not before the step."""

    @property
    def gated_layers(self) -> tuple[int, ...]:
        """Before which layers this step waits, ascending; mostly none. Changes between steps only."""

    def pass_layer(self, layer: int) -> None:
        """Block until the keys and values of this layer and those up to the next gated one are there, or never will be.

        Raises:
            OffloadError: the link is dead.
        """


class OpenGate:
    """All that a step reads is there before it."""

    @property
    def gated_layers(self) -> tuple[int, ...]:
        return ()

    def pass_layer(self, layer: int) -> None:
        """Nothing to wait for."""


OPEN_GATE = OpenGate()
