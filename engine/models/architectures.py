"""The table of architectures: how each family's configuration and tensors are read into the one decoder."""

from __future__ import annotations

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_error import ModelFileError, UnsupportedModelError
from engine.models import gemma3, llama, mistral, phi3, qwen2, qwen3
from engine.models.architecture import GGUFArchitecture, HFArchitecture

HF_ARCHITECTURES = (llama.HF, mistral.HF, qwen2.HF, qwen3.HF, gemma3.HF, gemma3.HF_MULTI_MODAL, phi3.HF)
GGUF_ARCHITECTURES = (llama.GGUF, qwen2.GGUF, qwen3.GGUF, gemma3.GGUF, phi3.GGUF)


def hf_architecture(config: ConfigFields) -> HFArchitecture:
    """The family of a config.json. `auto_map` and other pointers to code are never followed.

    Raises:
        ModelFileError: config.json names none.
        UnsupportedModelError: none that it names is known.
    """
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names:
        raise ModelFileError(f"{config.source}: architectures is {names!r}, expected a list of names")
    for architecture in HF_ARCHITECTURES:
        if architecture.name in names:
            return architecture
    known = ", ".join(architecture.name for architecture in HF_ARCHITECTURES if architecture != gemma3.HF_MULTI_MODAL)
    raise UnsupportedModelError(f"{config.source}: architecture {names[0]!r} is not supported; known are {known}")


def gguf_architecture(file: GGUFFile) -> GGUFArchitecture:
    """The family of a GGUF file.

    Raises:
        ModelFileError: the file names none.
        UnsupportedModelError: the one it names is not known.
    """
    name = ConfigFields(file.header.metadata, file.name).required("general.architecture", str)
    for architecture in GGUF_ARCHITECTURES:
        if architecture.name == name:
            return architecture
    known = ", ".join(architecture.name for architecture in GGUF_ARCHITECTURES)
    raise UnsupportedModelError(f"{file.name}: architecture {name!r} is not supported; known are {known}")
