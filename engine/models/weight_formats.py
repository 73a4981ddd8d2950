"""Which format each matrix of a file is packed in, so that weights stay as they are stored."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from typing import Literal

import torch

from engine.layers.layer_layout import LayerFormats
from engine.model_config import ModelConfig
from engine.model_error import UnsupportedModelError
from engine.models.decoder_weights import DecoderFormats
from engine.models.tensor_names import TensorNames
from engine.tensor_source import TensorSource
from kernels.linear import DenseFormat, WeightFormat
from kernels.native.tiled_format import TiledFormat
from kernels.quantised.block_type import BLOCK_TYPES, GROUP_SIZE, Q4_1, Q8_0
from kernels.quantised.tiled_blocks import TiledBlocks

logger = logging.getLogger(__name__)

Quantize = Literal["int8", "int4"]
PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LAYER_TYPES = {"int8": Q8_0, "int4": Q4_1}


@dataclasses.dataclass(frozen=True, slots=True)
class FormatChoice:
    """How matrices are to be packed.

    With neither `dtype` nor `quantize` a matrix keeps its type: quantised ones as blocks, plain ones in tiles of their
    own type. A type that no kernel multiplies, and every quantised one where there are no native kernels, is up-cast to
    the activations' type, with a line in the log.
    """

    activations: torch.dtype
    is_native: bool
    dtype: torch.dtype | None = None
    """What all weights are converted to; None: as stored."""
    quantize: Quantize | None = None
    """What plain numbers are rounded to: int8 to Q8_0; int4 to Q4_1, but embedding and head to Q8_0."""

    def formats(self, config: ModelConfig, source: TensorSource, names: TensorNames) -> DecoderFormats:
        """A format for every matrix of the file.

        Raises:
            UnsupportedModelError: `quantize` without native kernels, or of a file that is quantised already.
        """
        if self.quantize is not None and not self.is_native:
            raise UnsupportedModelError(
                f"--quantize {self.quantize} needs the native kernels; leave it out, or see the log for what they lack"
            )
        chosen = _Chosen(self, source, names)
        hidden, intermediate = config.hidden_size, config.intermediate_size
        widths = {"query": hidden, "key": hidden, "value": hidden, "output": config.query_size}
        widths |= {"gate": hidden, "up": hidden, "down": intermediate}
        layers = tuple(
            LayerFormats(**{part: chosen.format_of(f"layers.{layer}.{part}", width) for part, width in widths.items()})
            for layer in range(config.num_layers)
        )
        embedding = chosen.format_of("embedding", hidden)
        head = embedding if config.tie_word_embeddings else chosen.format_of("head", hidden)
        chosen.log_changes()
        biases = torch.float32 if self.is_native else self.activations
        norms = torch.float32 if config.has_wide_norms else biases
        return DecoderFormats(layers, embedding, head, norms, biases)

    def plain(self, dtype: torch.dtype) -> WeightFormat:
        """Of plain numbers. PyTorch multiplies only what is of the activations' type."""
        return TiledFormat(dtype) if self.is_native else DenseFormat(self.activations)


class _Chosen:
    """The choices for one file, counted where a matrix does not keep its type."""

    def __init__(self, choice: FormatChoice, source: TensorSource, names: TensorNames) -> None:
        self._choice = choice
        self._source = source
        self._names = names
        self._changes: Counter[tuple[str, str, str]] = Counter()

    def format_of(self, name: str, in_features: int) -> WeightFormat:
        """Of our name of a matrix.

        Raises:
            UnsupportedModelError: it is to be quantised and is already.
        """
        choice, kind = self._choice, self._source.number_formats[self._names.of(name)]
        if choice.quantize is not None:
            return self._quantised(name, kind, in_features, choice.quantize)
        if choice.dtype is not None:
            return choice.plain(choice.dtype)
        if kind in PLAIN_TYPES:
            return choice.plain(PLAIN_TYPES[kind])
        if kind in BLOCK_TYPES and choice.is_native:
            return TiledBlocks(BLOCK_TYPES[kind])
        reason = "there are no native kernels" if kind in BLOCK_TYPES else "no kernel multiplies them as they are"
        return self._changed(kind, choice.plain(choice.activations), reason)

    def _quantised(self, name: str, kind: str, in_features: int, quantize: Quantize) -> WeightFormat:
        if kind not in PLAIN_TYPES:
            raise UnsupportedModelError(
                f"{self._source.name}: {self._names.of(name)} is stored as {kind} already; leave out --quantize"
            )
        if in_features % GROUP_SIZE:
            reason = f"rows of {in_features} numbers are no whole groups of {GROUP_SIZE}"
            return self._changed(kind, self._choice.plain(self._choice.activations), reason)
        block_type = _LAYER_TYPES[quantize] if name.startswith("layers.") else Q8_0
        return self._changed(kind, TiledBlocks(block_type), f"--quantize {quantize}")

    def _changed(self, kind: str, weight_format: WeightFormat, reason: str) -> WeightFormat:
        self._changes[kind, weight_format.name, reason] += 1
        return weight_format

    def log_changes(self) -> None:
        for (kind, name, reason), count in self._changes.items():
            logger.info("%d matrices stored as %s become %s: %s", count, kind, name, reason)
