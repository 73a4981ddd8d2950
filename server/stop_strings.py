"""Cut a growing text before its first stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopStringFilter:
    """Passes text on up to the first stop string, and not one character of it before it is certain that it is none.

    First means: the earliest start in the whole text; of several at one place, the one listed first. The result does
    not depend on how the text is cut into pieces. The work is linear in the text, for each stop string.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool) -> None:
        """Raises ValueError: a stop string is empty."""
        if not all(stops):
            raise ValueError("a stop string is empty; it must hold at least one character")
        self.stopped: str | None = None
        """The stop string that ended the text."""
        self._include = include_in_output
        self._searches = [_Search(stop) for stop in stops]
        self._held = ""
        self._num_passed = 0

    def push(self, text: str) -> str:
        """The text that may be shown now; empty once `stopped` is set."""
        if self.stopped is not None:
            return ""
        self._held += text
        for search in self._searches:
            search.push(text)
        first = self._first_match()
        if first is not None and not self._may_be_preceded(first):
            return self._stop(first)
        return self._pass(min((search.earliest_start for search in self._searches), default=self._length))

    def flush(self) -> str:
        """The text has ended: what was held back, up to a stop string."""
        if self.stopped is not None:
            return ""
        first = self._first_match()
        return self._pass(self._length) if first is None else self._stop(first)

    @property
    def _length(self) -> int:
        return self._num_passed + len(self._held)

    def _first_match(self) -> int | None:
        """Index of the stop string that is the first so far."""
        found = [(search.start, index) for index, search in enumerate(self._searches) if search.start is not None]
        return min(found)[1] if found else None

    def _may_be_preceded(self, first: int) -> bool:
        """Whether a stop string that is only begun would come before `first` if it went on."""
        place = (self._searches[first].start, first)
        return any(
            search.start is None and search.num_matched and (search.earliest_start, index) < place
            for index, search in enumerate(self._searches)
        )

    def _stop(self, index: int) -> str:
        search = self._searches[index]
        self.stopped = search.stop
        end = search.earliest_start + (len(search.stop) if self._include else 0)
        shown = self._pass(end)
        self._held = ""
        return shown

    def _pass(self, end: int) -> str:
        """Hand out the held text up to position `end` of the whole."""
        count = end - self._num_passed
        shown, self._held = self._held[:count], self._held[count:]
        self._num_passed = end
        return shown


class _Search:
    """Knuth-Morris-Pratt for one stop string over a text that comes in pieces."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        """Characters of `stop` that the text ends with."""
        self.start: int | None = None
        """Where it was found."""
        self._num_seen = 0
        self._borders = _borders(stop)

    @property
    def earliest_start(self) -> int:
        """Where it begins, or could begin at the earliest."""
        return self._num_seen - self.num_matched if self.start is None else self.start

    def push(self, text: str) -> None:
        if self.start is not None:
            return
        position = 0
        while position < len(text):
            if self.num_matched == 0:  # skip at the speed of str.find
                position = text.find(self.stop[0], position)
                if position < 0:
                    break
            self._step(text[position])
            position += 1
            if self.num_matched == len(self.stop):
                self.start = self._num_seen + position - len(self.stop)
                return
        self._num_seen += len(text)

    def _step(self, character: str) -> None:
        while self.num_matched and self.stop[self.num_matched] != character:
            self.num_matched = self._borders[self.num_matched - 1]
        if self.stop[self.num_matched] == character:
            self.num_matched += 1


def _borders(stop: str) -> list[int]:
    """For each beginning of `stop` the length of its longest proper beginning that is also its end."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
