"""Whose prompt is computed next: partial prefills and the first waiting request of each class, within one step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from scheduler.class_lane import place_of
from scheduler.policy import Backlog, Policy
from scheduler.request import Request, RequestStatus


class PrefillTurns:
    """Of one step. Whoever was dropped or whose class may not start has no turn in it any more."""

    def __init__(
        self,
        partials: Iterable[Request],
        heads: Iterable[Request],
        head_of: Callable[[str], Request | None],
        policy: Policy,
        backlog: Backlog,
    ) -> None:
        """
        Args:
            partials: running requests that lack more than one token, in the order of their places.
            heads: the first waiting request of each class that has any.
            head_of: that of a class, as the queue is when it is called.
        """
        self._partials: dict[str, deque[Request]] = {}
        for request in partials:
            self._partials.setdefault(request.slo_class.name, deque()).append(request)
        self._head_of = head_of
        self._policy = policy
        self._backlog = backlog
        self._blocked_classes: set[str] = set()
        self._blocked_rank: int | None = None
        """No starts from this rank on."""
        self._candidates = {name: requests[0] for name, requests in self._partials.items()}
        """By class; only that of a class in which something changed is looked up again."""
        self._changed: set[str] = set()
        for head in heads:
            self._offer(head)

    def next(self) -> Request | None:
        """Whose turn it is; None: nobody's."""
        self._refresh()
        if not self._candidates:
            return None
        return self._policy.choose(list(self._candidates.values()), self._backlog)

    def of_class(self, class_name: str) -> Request | None:
        """Whose turn it is in one class."""
        self._refresh()
        return self._candidates.get(class_name)

    def took(self, request: Request) -> None:
        """It had its turn: a partial prefill, or a waiting request that has left its place in the queue by itself."""
        name = request.slo_class.name
        partials = self._partials.get(name)
        if partials and partials[0] is request:
            partials.popleft()
        self._changed.add(name)

    def drop(self, request: Request) -> None:
        """It gets nothing in this step: nothing that is of use to it fits."""
        if request.status is RequestStatus.RUNNING:
            self.took(request)
        else:
            self._blocked_classes.add(request.slo_class.name)
            self._changed.add(request.slo_class.name)

    def block_starts(self, rank: int) -> None:
        """Nobody of that rank or below starts in this step: nobody overtakes one that lacks something."""
        self._blocked_rank = rank if self._blocked_rank is None else min(rank, self._blocked_rank)
        self._changed.update(name for name, candidate in self._candidates.items() if candidate.rank >= rank)

    def _refresh(self) -> None:
        """Look up whose turn it is in the classes in which something changed."""
        for name in self._changed:
            partials, head = self._partials.get(name), self._head_of(name)
            self._candidates.pop(name, None)
            if partials:
                self._candidates[name] = partials[0]
            if head is not None:
                self._offer(head)
        self._changed.clear()

    def _offer(self, head: Request) -> None:
        """It may start. In one class the place decides between who runs and who waits."""
        name, rank = head.slo_class.name, self._blocked_rank
        if name in self._blocked_classes or (rank is not None and head.rank >= rank):
            return
        partial = self._candidates.get(name)
        if partial is None or place_of(head) < place_of(partial):
            self._candidates[name] = head
