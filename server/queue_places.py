"""Places in the server and in the queues of the classes, taken before a prompt is tokenized.

Tokenizing costs processor time, so an overloaded server must refuse before it: by the number of generations in the
server (503) and by the tokens that wait in the class's queue (429). At first a prompt's tokens are estimated, then they
are known. The engine decides again, exactly, with the same caps.

A class with an empty queue takes any request: a request larger than the cap would otherwise be told to come back for
ever.
"""

from __future__ import annotations

from types import TracebackType

from scheduler.slo import SLOClasses
from server.errors import overloaded, rate_limited

CHARS_PER_TOKEN = 4
"""Of ordinary text, for the first estimate."""


class QueuePlaces:
    """Counts places; a `QueuePlace` is one.

    Invariant: `num_taken` = open places; a class's queued tokens = the sum over its places that still wait.
    """

    def __init__(self, classes: SLOClasses, max_requests: int) -> None:
        self._classes = classes
        self._max_requests = max_requests
        self._queued_tokens = dict.fromkeys(classes.names, 0)
        self._places: set[QueuePlace] = set()

    @property
    def num_taken(self) -> int:
        return len(self._places)

    def queued_tokens(self, class_name: str) -> int:
        """Tokens that wait in the class's queue, as far as they are known here."""
        return self._queued_tokens[class_name]

    def take(self, class_name: str, num_tokens: int) -> QueuePlace:
        """A place for a request of about `num_tokens` prompt and output tokens.

        Raises:
            ApiError: 503, the server is full; 429, the class's queue is.
        """
        if len(self._places) >= self._max_requests:
            raise overloaded(
                f"the server holds {len(self._places)} requests, its limit is {self._max_requests}: retry later",
                "server_full",
            )
        place = QueuePlace(self, class_name)
        self._add_tokens(class_name, num_tokens)
        place.num_tokens = num_tokens
        self._places.add(place)
        return place

    def _add_tokens(self, class_name: str, num_tokens: int) -> None:
        """Raises ApiError: 429, and nothing was added."""
        queued, cap = self._queued_tokens[class_name], self._classes.get(class_name).queue_cap_tokens
        if queued > 0 and queued + num_tokens > cap:
            raise rate_limited(
                f"class {class_name!r} has {queued} tokens queued and this request {num_tokens}, "
                f"its limit is {cap}: retry later or ask for another class",
                "class_queue_full",
            )
        self._queued_tokens[class_name] += num_tokens

    def _drop_tokens(self, place: QueuePlace) -> None:
        self._queued_tokens[place.class_name] -= place.num_tokens
        place.num_tokens = 0

    def _give_back(self, place: QueuePlace) -> None:
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
        """The exact number is known.

        Raises:
            ApiError: 429, the class's queue has no room for it; the place still stands and counts no tokens.
        """
        self._places._drop_tokens(self)
        self._places._add_tokens(self.class_name, num_tokens)
        self.num_tokens = num_tokens

    def admitted(self) -> None:
        """It left the queue: its tokens no longer count."""
        self._places._drop_tokens(self)

    def __enter__(self) -> QueuePlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._places._drop_tokens(self)
        self._places._give_back(self)
