"""How one family's configuration and tensors are read into the one decoder, by file format."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.models.tensor_names import TensorNames


@dataclasses.dataclass(frozen=True, slots=True)
class HFArchitecture:
    """From a directory with config.json and safetensors."""

    name: str
    """The entry of `architectures`."""
    read_config: Callable[[ConfigFields], ModelConfig]
    """Raises ModelFileError or UnsupportedModelError, or ValueError: see `ModelConfig`."""
    names: TensorNames


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFArchitecture:
    """From a GGUF file."""

    name: str
    """`general.architecture`."""
    read_config: Callable[[GGUFFile], ModelConfig]
    """Raises as `HFArchitecture.read_config`."""
    names: TensorNames
