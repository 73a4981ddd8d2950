"""Decoders whose layers are of two kinds: some see everything, some a sliding window."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from engine.attention_kind import AttentionKind
from engine.config_fields import ConfigFields
from engine.model_config import ModelConfig
from engine.model_error import ModelFileError, UnsupportedModelError

FULL, SLIDING = "full_attention", "sliding_attention"
MAX_LAYERS = 2**16
"""That are looked at one by one; a damaged file may claim more."""


def mixed_layers(
    config: ModelConfig, full: AttentionKind, sliding: AttentionKind, is_sliding: Callable[[int], bool]
) -> ModelConfig:
    """`config` with the kind that `is_sliding` says of every layer's index.

    Raises:
        ValueError: so many layers are in no decoder.
    """
    if config.num_layers > MAX_LAYERS:
        raise ValueError(f"num_layers is {config.num_layers}, it must be at most {MAX_LAYERS}")
    chosen = [sliding if is_sliding(layer) else full for layer in range(config.num_layers)]
    kinds = tuple(dict.fromkeys(chosen))
    return dataclasses.replace(config, attention_kinds=kinds, layer_kinds=tuple(map(kinds.index, chosen)))


def read_layer_types(config: ConfigFields, num_layers: int) -> list[str] | None:
    """`layer_types` of a config.json; None where it has none.

    Raises:
        ModelFileError: no list with an entry for every layer.
        UnsupportedModelError: an entry that is neither of the two kinds.
    """
    types = config.values.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != num_layers:
        raise ModelFileError(f"{config.source}: layer_types is {types!r}, expected a list of {num_layers} entries")
    for name in types:
        if name not in (FULL, SLIDING):
            raise UnsupportedModelError(
                f"{config.source}: layer_types has {name!r}; supported are {FULL!r} and {SLIDING!r}"
            )
    return types
