"""Places in the server and in the queues of the classes, taken before a prompt is tokenized.

Tokenizing costs processor time, so an overloaded server must refuse before it: by the number of generations in the
server (503), and by the prompt tokens that wait in a class (429). Until a prompt is tokenized its tokens are estimated.
The engine decides again, exactly, by the same caps; what it could start at once is never refused for them, so they
count here only for a class that the engine has told to be waiting.

A class in which nothing waits takes any request: one larger than the cap would otherwise be told to come back for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from scheduler.slo import SLO, SLOClasses
from server.errors import overloaded, rate_limited
from server.token_rate import TokenRate

CHARS_PER_TOKEN = 4
"""Of ordinary text, for the first estimate."""


class QueuePlaces:
    """Counts places; a `QueuePlace` is one.

    Invariant: `num_taken` = open places; a class's queued tokens = the sum over its places that still wait.
    """

    def __init__(self, classes: SLOClasses, max_requests: int, rate: TokenRate | None = None) -> None:
        """`rate` estimates when to come back; None: nothing is known of the engine."""
        self._classes = classes
        self._rate = rate or TokenRate()
        self._max_requests = max_requests
        self._queued_tokens = dict.fromkeys(classes.names, 0)
        self._places: set[QueuePlace] = set()

    @property
    def num_taken(self) -> int:
        return len(self._places)

    def queued_tokens(self, class_name: str) -> int:
        """Prompt tokens of the requests of a class that were not admitted yet, as far as they are known here."""
        return self._queued_tokens[class_name]

    def take(self, slo: SLO, num_tokens: int, num_waiting: Mapping[str, int]) -> QueuePlace:
        """A place for a request of about `num_tokens` prompt tokens.

        Args:
            num_waiting: what waits in the engine, by class; absent: nothing.

        Raises:
            ApiError: 503, the server is full; 429, the class is, and so is the lower one the request consents to.
        """
        if len(self._places) >= self._max_requests:
            raise overloaded(
                f"the server holds {len(self._places)} requests, its limit is {self._max_requests}: retry later",
                "server_full",
                self._retry_after_s(slo),
            )
        lower = self._classes.get(slo.requested).degrade_to if slo.may_degrade else None
        for name in (slo.requested, lower):
            if name is not None and self._has_room(name, num_tokens, num_waiting):
                place = QueuePlace(self, name)
                place.set_tokens(num_tokens)
                self._places.add(place)
                return place
        raise rate_limited(
            f"class {slo.requested!r} has {self._queued_tokens[slo.requested]} prompt tokens waiting and takes "
            f"{self._classes.get(slo.requested).queue_cap_tokens}, this request has about {num_tokens}: "
            "retry later, shorten the prompt or ask for another class",
            "class_queue_full",
            self._retry_after_s(slo),
        )

    def _retry_after_s(self, slo: SLO) -> float:
        """Until what waits ahead, in the class and in those before it, is worked off."""
        rank = self._classes.get(slo.requested).rank
        return self._rate.retry_after_s(sum(self._queued_tokens[c.name] for c in self._classes if c.rank <= rank))

    def _has_room(self, name: str, num_tokens: int, num_waiting: Mapping[str, int]) -> bool:
        queued, cap = self._queued_tokens[name], self._classes.get(name).queue_cap_tokens
        return queued == 0 or not num_waiting.get(name) or queued + num_tokens <= cap

    def add_tokens(self, class_name: str, num_tokens: int) -> None:
        """From a place: its part of the queue has changed."""
        self._queued_tokens[class_name] += num_tokens

    def give_back(self, place: QueuePlace) -> None:
        """From a place: it is free."""
        self._places.discard(place)

    def check(self) -> None:
        """Assert what must always hold."""
        waiting = dict.fromkeys(self._queued_tokens, 0)
        for place in self._places:
            waiting[place.class_name] += place.num_tokens
        assert waiting == self._queued_tokens, f"{waiting} != {self._queued_tokens}"


class QueuePlace:
    """One request's place; leaving the block gives it back."""

    def __init__(self, places: QueuePlaces, class_name: str) -> None:
        self._places = places
        self.class_name = class_name
        self.num_tokens = 0
        """Counted in the class's queue; 0 once it was admitted."""

    def set_tokens(self, num_tokens: int) -> None:
        """A better number is known."""
        self._places.add_tokens(self.class_name, num_tokens - self.num_tokens)
        self.num_tokens = num_tokens

    def admitted(self) -> None:
        """It left the queue: its tokens no longer count."""
        self.set_tokens(0)

    def __enter__(self) -> QueuePlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.set_tokens(0)
        self._places.give_back(self)
