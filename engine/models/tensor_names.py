"""Under which names a file format stores the parts of a decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class TensorNames:
    """Maps our names to the file's. `{layer}` in a pattern is the layer's number."""

    patterns: Mapping[str, str]
    """Our name, with "layers.{layer}." before what each layer has, to the file's. Parts of one name are rows of one
    tensor, one after the other in the order of `decoder_weights.parameters`."""
    ignored: tuple[str, ...] = ()
    """Regular expressions of tensors that may be there and hold nothing the decoder needs."""
    has_interleaved_rotary_pairs: bool = False
    """Rows 2d and 2d + 1 of a query or key head turn together, where the decoder turns rows d and d + D/2."""
    norm_offset: float = 0.0
    """What the decoder multiplies by is the stored norm plus this."""

    def of(self, name: str) -> str:
        """The file's name of "embedding" or "layers.3.query"."""
        head, _, part = name.partition(".")
        if head != "layers":
            return self.patterns[name]
        layer, _, part = part.partition(".")
        return self.patterns[f"layers.{{layer}}.{part}"].format(layer=layer)
