"""A model as the planner sees it: from its files' headers, its config.json alone, or a built-in shape."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import torch

from engine.attention_kind import AttentionKind
from engine.dtype import DTYPES
from engine.model_config import ModelConfig
from engine.models.weight_formats import FormatChoice, Quantize
from engine.offload_setup import model_shape
from engine.weights import read_weight_sizes
from kernels.rotary import Rope
from offload.known_models import KNOWN_MODELS, DecoderSizes, WeightType, known_shape
from offload.model_shape import ModelShape


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedModel:
    """No weight of it is read."""

    shape: ModelShape
    config: ModelConfig
    dtype: torch.dtype
    """Of activations, keys and values."""


def built_in_names() -> tuple[str, ...]:
    """Of the shapes that need no files."""
    return tuple(KNOWN_MODELS)


def built_in_model(name: str, dtype: str, quantize: Quantize | None) -> PlannedModel:
    """A built-in shape; "auto" is bfloat16.

    Raises:
        UnknownModelError: there is none of that name.
    """
    plain = "bfloat16" if dtype == "auto" else dtype
    shape = known_shape(name, quantize or cast(WeightType, plain))
    return PlannedModel(shape, _config(KNOWN_MODELS[name.lower()]), DTYPES[plain])


def model_in_files(path: Path, choice: FormatChoice, name: str) -> PlannedModel:
    """A GGUF file, or a directory with config.json; where it has no weights, all matrices are of the plain type.

    Raises:
        ModelFileError: a file is missing, damaged or not what the configuration says.
        UnsupportedModelError: an architecture, option or number format that is not supported.
    """
    config, sizes = read_weight_sizes(path, choice)
    shape = dataclasses.replace(model_shape(config, sizes, choice.activations), name=name)
    return PlannedModel(shape, config, choice.activations)


def _config(sizes: DecoderSizes) -> ModelConfig:
    return ModelConfig(
        architecture=sizes.name,
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        intermediate_size=sizes.intermediate_size,
        vocab_size=sizes.vocab_size,
        max_position_tokens=sizes.max_position_tokens,
        rms_norm_eps=1e-5,
        attention_kinds=(AttentionKind(Rope(1e4, sizes.head_dim)),),
        tie_word_embeddings=sizes.is_tied,
    )
