"""Typed reading of a model's configuration, from JSON or from GGUF metadata, with errors that name file and key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from engine.model_error import ModelFileError

T = TypeVar("T", int, float, bool, str)


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigFields:
    """A mapping that came from a file nobody vouches for."""

    values: Mapping[str, Any]
    source: str
    """For messages: the file."""

    def required(self, key: str, kind: type[T]) -> T:
        """Raises ModelFileError: missing, null, or of another type."""
        value = self.optional(key, kind)
        if value is None:
            raise ModelFileError(f"{self.source}: {key} is missing")
        return value

    def optional(self, key: str, kind: type[T]) -> T | None:
        """None where the key is missing or null.

        Raises:
            ModelFileError: of another type.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind:
            raise ModelFileError(f"{self.source}: {key} is {value!r}, expected {kind.__name__}")
        return value

    def with_default(self, key: str, kind: type[T], default: T) -> T:
        """`default` where the key is missing or null; a zero is a value.

        Raises:
            ModelFileError: of another type.
        """
        value = self.optional(key, kind)
        return default if value is None else value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty where the key is missing or null.

        Raises:
            ModelFileError: something else.
        """
        value = self.values.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise ModelFileError(f"{self.source}: {key} is {value!r}, expected a token id or a list of them")
        return tuple(ids)

    def section(self, key: str) -> ConfigFields | None:
        """A nested mapping; None where the key is missing or null.

        Raises:
            ModelFileError: something else.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ModelFileError(f"{self.source}: {key} is {value!r}, expected an object")
        return ConfigFields(value, f"{self.source}: {key}")
