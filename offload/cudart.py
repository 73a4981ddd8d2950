"""The calls of the CUDA runtime that pin memory, which torch has no function of its own for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

SUCCESS = 0
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device."""


class Cudart(Protocol):
    """Codes are those of cudaError_t."""

    def register(self, address: int, num_bytes: int) -> int:
        """Pin a range."""
        ...

    def unregister(self, address: int) -> int:
        """Undo it, by the address it began at."""
        ...

    def clear_error(self) -> None:
        """Forget the failure of the last call: left alone, it comes up in an unrelated one of the same thread."""
        ...

    def describe(self, code: int) -> str: ...


class LoadedCudart:
    """The runtime that torch has loaded."""

    def __init__(self, runtime: Any = None, last_errors: Sequence[Callable[[], int]] | None = None) -> None:
        """
        Args:
            runtime: None: `torch.cuda.cudart()`, which has no way to ask for the last error.
            last_errors: cudaGetLastError of each runtime in the process, which keep theirs apart; None: looked for.
        """
        self._runtime: Any = torch.cuda.cudart() if runtime is None else runtime  # type: ignore[no-untyped-call]
        self._last_errors = tuple(_last_errors()) if last_errors is None else tuple(last_errors)

    def register(self, address: int, num_bytes: int) -> int:
        return int(self._runtime.cudaHostRegister(address, num_bytes, _PORTABLE))

    def unregister(self, address: int) -> int:
        return int(self._runtime.cudaHostUnregister(address))

    def clear_error(self) -> None:
        for last_error in self._last_errors:
            last_error()

    def describe(self, code: int) -> str:
        return f"{self._runtime.cudaGetErrorString(self._runtime.cudaError(code))} (cudaError {code})"


def loaded_runtimes(maps: Path = Path("/proc/self/maps")) -> tuple[str, ...]:
    """Paths of the CUDA runtimes in this process: torch's own has a digest in its name, others may be beside it."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    paths = (line.split(maxsplit=5)[5].removesuffix(" (deleted)") for line in lines if line.count(" ") and "/" in line)
    return tuple(dict.fromkeys(path for path in paths if "libcudart" in Path(path).name))


def _last_errors() -> Iterator[Callable[[], int]]:
    for path in loaded_runtimes():
        function = ctypes.CDLL(path).cudaGetLastError
        function.restype = ctypes.c_int
        yield function
