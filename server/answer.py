"""What chat and text answers have in common: the envelope of every chunk and answer, and the seam of their writers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from server.choice_text import ChoiceUpdate
from server.json_pieces import Piece


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that are equal in all chunks of an answer."""

    id: str
    created_s: int
    """Unix time."""
    model: str
    service_tier: str

    def fields(self, kind: str, **more: Any) -> dict[str, Any]:
        """A chunk or an answer, as a JSON value, without its choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "service_tier": self.service_tier,
            **more,
        }

    def wrap(self, kind: str, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The same with its choices."""
        return self.fields(kind, choices=list(choices), **more)


class AnswerWriter(Protocol):
    """Makes JSON values of updates; one per request."""

    def chunks(self, update: ChoiceUpdate) -> list[dict[str, Any]]:
        """The chunks of a stream that an update makes: none, one, or two where it is the first of its choice."""

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk of a stream with usage: no choices."""

    def collect(self, update: ChoiceUpdate) -> None:
        """Keep an update for `answer`, in a form that costs nothing while it is kept."""

    def answer(self, usage: dict[str, Any]) -> Iterator[Piece]:
        """The whole answer as pieces of JSON, made one after the other, once every choice has finished."""
