"""What of a layer is streamed."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class StreamedUnit:
    """The end of a layer's slab, from a matrix's first byte on; the whole slab where it begins at 0."""

    layer: int
    num_bytes: int
    first_byte: int = 0
