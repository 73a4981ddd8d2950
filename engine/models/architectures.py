"""The table of architectures: how each family's configuration and tensors are read into the one decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import ModelFileError, UnsupportedModelError
from engine.models import llama
from engine.models.tensor_names import TensorNames


@dataclasses.dataclass(frozen=True, slots=True)
class Architecture:
    """One family."""

    name: str
    """Also GGUF's `general.architecture`."""
    hf_name: str
    """The entry of `architectures` in config.json."""
    read_hf_config: Callable[[ConfigFields], ModelConfig]
    read_gguf_config: Callable[[GGUFFile], ModelConfig]
    hf_names: TensorNames
    gguf_names: TensorNames


ARCHITECTURES = (
    Architecture(
        llama.NAME,
        "LlamaForCausalLM",
        llama.read_hf_config,
        llama.read_gguf_config,
        llama.HF_NAMES,
        llama.GGUF_NAMES,
    ),
)


def hf_architecture(config: ConfigFields) -> Architecture:
    """The family of a config.json. `auto_map` and other pointers to code are never followed.

    Raises:
        ModelFileError: config.json names none.
        UnsupportedModelError: none that it names is known.
    """
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names:
        raise ModelFileError(f"{config.source}: architectures is {names!r}, expected a list of names")
    for architecture in ARCHITECTURES:
        if architecture.hf_name in names:
            return architecture
    known = ", ".join(architecture.hf_name for architecture in ARCHITECTURES)
    raise UnsupportedModelError(f"{config.source}: architecture {names[0]!r} is not supported; known are {known}")


def gguf_architecture(file: GGUFFile) -> Architecture:
    """The family of a GGUF file.

    Raises:
        ModelFileError: the file names none.
        UnsupportedModelError: the one it names is not known.
    """
    name = ConfigFields(file.header.metadata, file.name).required("general.architecture", str)
    for architecture in ARCHITECTURES:
        if architecture.name == name:
            return architecture
    known = ", ".join(architecture.name for architecture in ARCHITECTURES)
    raise UnsupportedModelError(f"{file.name}: architecture {name!r} is not supported; known are {known}")
