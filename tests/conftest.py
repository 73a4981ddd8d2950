"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kernels.native_library import NativeLibrary


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a small random Llama with a tokenizer and a chat template; treat it as read-only."""
    from tests.tiny_model import make_tiny_llama  # imports transformers: only where a test asks for the model

    return make_tiny_llama(tmp_path_factory.mktemp("tiny_llama"))


@pytest.fixture(scope="session")
def native_library() -> Iterator[NativeLibrary]:
    """The native kernels on the best instruction set of this machine, two threads."""
    from kernels.native_library import NativeLibraryError, find_compiler, load_native_library

    try:
        find_compiler(os.environ)
    except NativeLibraryError as error:
        pytest.skip(str(error))
    library = load_native_library(2, os.environ)
    yield library
    library.close()


@pytest.fixture(scope="session", params=["torch", "native"])
def library(request: pytest.FixtureRequest) -> NativeLibrary | None:
    """Each way to compute in turn: PyTorch's operators, which is None, and the native kernels."""
    return request.getfixturevalue("native_library") if request.param == "native" else None


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """GGUF file of the default model; a test that uses it is marked `real_model`."""
    from server.model_source import resolve_model  # the cache only: tests never use a network

    return resolve_model("smollm2-135m").path


@pytest.fixture(scope="session")
def real_transformers_model(real_model_path: Path) -> Any:
    """The default model as transformers dequantizes it from the same file, float32; takes 12 s to load."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        real_model_path.parent,
        gguf_file=real_model_path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    return model.eval()
