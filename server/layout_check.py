"""Are the packages that Python finds ours? Their names are plain, and PyPI has one named `kernels`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_FOLDERS = ("kernels", "offload", "scheduler", "engine", "server", "loadgen")


class ForeignPackageError(Exception):
    """Another distribution's package hides one of ours."""


def check_layout(home: Path | None = None) -> None:
    """See that every folder of Headrace lies beside the others.

    Args:
        home: the folder that holds them all; None: the one that holds this package.

    Raises:
        ForeignPackageError: says which one does not, and what to do.
    """
    home = home or Path(__file__).resolve().parents[1]
    for name in _FOLDERS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec and spec.origin else None
        if origin is None or origin.parents[1] != home:
            raise ForeignPackageError(
                f"Python finds the package {name!r} at {origin}, not in {home}: another distribution of that name is "
                f"installed beside Headrace. Run Headrace in an environment of its own (`make serve` makes one), or "
                f"remove the other one (`pip uninstall {name}`)."
            )
