"""The native library on every instruction set that this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.native_library import INSTRUCTION_SETS, NativeLibrary, build_library
from tests.sanitized import FLAGS_VARIABLE


@pytest.fixture(scope="session")
def library_path() -> Path:
    """The built library, from the user's cache; `tests.sanitized` adds flags."""
    return build_library(os.environ, extra_flags=tuple(os.environ.get(FLAGS_VARIABLE, "").split()))


@pytest.fixture(scope="session", params=INSTRUCTION_SETS)
def library(request: pytest.FixtureRequest, library_path: Path) -> Iterator[NativeLibrary]:
    """With two threads, so that work is really shared out."""
    generic = NativeLibrary(library_path, 1, "generic")
    supported = generic.supported_isas()
    generic.close()
    if request.param not in supported:
        pytest.skip(f"this processor has no {request.param}")
    native = NativeLibrary(library_path, 2, request.param)
    yield native
    native.close()
