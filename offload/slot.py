"""A place on the device that weights are copied into, again and again."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from offload.link import TransferHandle
from offload.streamed_unit import StreamedUnit


@dataclasses.dataclass(slots=True, eq=False)
class Slot:
    """Of fixed address. Belongs to nobody, to the link while a unit is loaded, or to the computation that holds it."""

    index: int
    memory: Tensor
    """[n] uint8, on the device."""
    unit: StreamedUnit | None = None
    """Whose bytes are here, or will be; None: nobody's."""
    handle: TransferHandle | None = None
    """Of the load of `unit`."""
    submitted_s: float = 0.0
    """When it was asked for, on the link's clock."""
    is_held: bool = False
    """Computation reads it: from acquiring to releasing."""
    is_used: bool = False
    """Computation has held it since the load."""

    @property
    def is_loading(self) -> bool:
        """Whether the link writes it."""
        return self.handle is not None and not self.handle.is_done

    @property
    def has_failed(self) -> bool:
        """Whether the load ended with an error: the bytes are undefined."""
        return self.handle is not None and self.handle.is_done and self.handle.failed is not None

    def load(self, unit: StreamedUnit, handle: TransferHandle, now_s: float) -> None:
        """The link writes `unit` from now on."""
        assert not self.is_held and not self.is_loading, f"slot {self.index} is in use"
        self.unit, self.handle, self.submitted_s, self.is_used = unit, handle, now_s, False

    def clear(self) -> None:
        """Forget what was here."""
        assert not self.is_held and not self.is_loading, f"slot {self.index} is in use"
        self.unit = self.handle = None
