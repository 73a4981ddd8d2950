"""Whose prompt is computed next: partial prefills and the first waiting request of each class, within one step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from scheduler.policy import Backlog, Policy
from scheduler.request import Request, RequestStatus


class PrefillTurns:
    """Of one step. Whoever was dropped or whose class may not start has no turn in it any more."""

    def __init__(
        self,
        partials: Iterable[Request],
        heads: Callable[[], list[Request]],
        policy: Policy,
        backlog: Backlog,
    ) -> None:
        """
        Args:
            partials: running requests that lack more than one token, in the policy's order.
            heads: the first waiting request of each class, as the queue is when it is called.
        """
        self._partials: dict[str, deque[Request]] = {}
        for request in partials:
            self._partials.setdefault(request.slo_class.name, deque()).append(request)
        self._heads = heads
        self._policy = policy
        self._backlog = backlog
        self._blocked_classes: set[str] = set()
        self._blocked_rank: int | None = None
        """No starts from this rank on."""

    def next(self) -> Request | None:
        """Whose turn it is; None: nobody's."""
        candidates = self._candidates()
        if not candidates:
            return None
        return self._policy.choose(list(candidates.values()), self._backlog)

    def of_class(self, class_name: str) -> Request | None:
        """Whose turn it is in one class."""
        return self._candidates().get(class_name)

    def took(self, request: Request) -> None:
        """A partial prefill had its turn; a waiting request that started has left the queue by itself."""
        partials = self._partials.get(request.slo_class.name)
        if partials and partials[0] is request:
            partials.popleft()

    def drop(self, request: Request) -> None:
        """It gets nothing in this step: nothing that is of use to it fits."""
        if request.status is RequestStatus.RUNNING:
            self.took(request)
        else:
            self._blocked_classes.add(request.slo_class.name)

    def block_starts(self, rank: int) -> None:
        """Nobody of that rank or below starts in this step: nobody overtakes one that lacks something."""
        self._blocked_rank = rank if self._blocked_rank is None else min(rank, self._blocked_rank)

    def _candidates(self) -> dict[str, Request]:
        """By class. In one class the policy's order decides between who runs and who waits."""
        found = {name: partials[0] for name, partials in self._partials.items() if partials}
        for head in self._heads():
            name = head.slo_class.name
            if name in self._blocked_classes or (self._blocked_rank is not None and head.rank >= self._blocked_rank):
                continue
            partial = found.get(name)
            if partial is None or head.order < partial.order:
                found[name] = head
        return found
