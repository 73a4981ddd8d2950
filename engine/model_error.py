"""What loading a model raises. The message names the file, the tensor or key, what was expected and what was found."""

from __future__ import annotations

from engine.errors import EngineError

MAX_NAMES_IN_MESSAGE = 5


class ModelError(EngineError):
    """The model cannot be served; trying again without changing it ends the same way."""


class ModelFileError(ModelError):
    """A file of the model is missing, damaged, or does not hold what its configuration promises."""


class UnsupportedModelError(ModelError):
    """The files are sound, but hold an architecture, an option or a number format that is not supported."""


def some_names(names: list[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - MAX_NAMES_IN_MESSAGE} more" if len(names) > MAX_NAMES_IN_MESSAGE else ""
    return ", ".join(names[:MAX_NAMES_IN_MESSAGE]) + more
