"""The requests that hold no blocks, by class, in the order in which they will be served."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from scheduler.class_lane import ClassLane
from scheduler.request import Request, RequestSpec


def num_queued_tokens(spec: RequestSpec) -> int:
    """What a request counts against its class's cap: the prompt, once for all its choices; at least one token each.

    Not the output: nobody knows its length, and `max_tokens` is a whole context where a client leaves it open.
    """
    return spec.num_prompt_tokens if spec.leader_id is None else 1


class WaitingQueue:
    """A lane for each class. A choice whose leader computes their prompt is parked: it waits out of the order; so does
    a request that waits for its blocks from the disk.

    Adding, removing and finding the first ones is O(log n), beside one memmove (8 bytes a request).
    """

    def __init__(self, num_blocks_for: Callable[[int], int], class_names: Iterable[str], *, is_fair: bool) -> None:
        """
        Args:
            class_names: the highest first.
            is_fair: within a class, the tenant with the least service is next; False: the order alone counts.
        """
        self._num_blocks_for = num_blocks_for
        self._lanes = {name: ClassLane(is_fair=is_fair) for name in class_names}
        self._parked: dict[str, list[Request]] = {}
        """By what they wait for."""
        self._key_of: dict[str, str] = {}
        """Of a parked request's id."""
        self.num_requests = 0
        self.num_blocks = 0
        """Blocks that all of them need to start, prefix hits not counted."""
        self.num_requests_by_class = dict.fromkeys(self._lanes, 0)
        self.num_tokens_by_class = dict.fromkeys(self._lanes, 0)

    def push(self, request: Request) -> None:
        """Let it wait for its turn. One that ran before keeps its place in the order."""
        self._lane_of(request).push(request)
        self._account(request, 1)

    def _lane_of(self, request: Request) -> ClassLane:
        return self._lanes[request.spec.slo.granted]

    def park(self, request: Request, key: str) -> None:
        """Let it wait without a turn, until `unpark`.

        Args:
            key: what it waits for: the id of its leader, say.
        """
        self._parked.setdefault(key, []).append(request)
        self._key_of[request.request_id] = key
        self._account(request, 1)

    def unpark(self, key: str) -> None:
        """What they wait for is there, or will not be: they take their turn."""
        for request in self._parked.pop(key, ()):
            del self._key_of[request.request_id]
            self._lane_of(request).push(request)

    def parked(self) -> list[Request]:
        """Those without a turn."""
        return [request for siblings in self._parked.values() for request in siblings]

    def heads(self) -> list[Request]:
        """The first of each class that has any, the highest class first; parked ones have no turn."""
        firsts = [lane.first() for lane in self._lanes.values()]
        return [request for request in firsts if request is not None]

    def head_of(self, class_name: str) -> Request | None:
        """The first of a class; None: none of it has a turn."""
        return self._lanes[class_name].first()

    def relegate(self, request: Request) -> None:
        """Let it wait behind those of its class that are not relegated. Once a request.

        Raises:
            KeyError: it has no turn here.
        """
        assert not request.is_relegated, f"{request.request_id} is relegated already"
        lane = self._lane_of(request)
        if not lane.remove(request):
            raise KeyError(request.request_id)
        request.is_relegated = True
        lane.push(request)

    def charge(self, class_name: str, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """A tenant had service in a class: tokens computed for a prompt, and tokens of output.

        The prompt is to be charged when its request starts, before the next head is looked for.
        """
        self._lanes[class_name].charge(tenant, num_prompt_tokens, num_output_tokens)

    def remove(self, request: Request) -> None:
        """Raises KeyError: it does not wait here."""
        if not self._lane_of(request).remove(request):
            self._remove_parked(request)
        self._account(request, -1)

    def _remove_parked(self, request: Request) -> None:
        key = self._key_of.pop(request.request_id)
        siblings = self._parked[key]
        siblings.remove(request)
        if not siblings:
            del self._parked[key]

    def _account(self, request: Request, sign: int) -> None:
        spec = request.spec
        self.num_requests += sign
        self.num_blocks += sign * self.num_blocks_to_start(request)
        self.num_requests_by_class[spec.slo.granted] += sign
        self.num_tokens_by_class[spec.slo.granted] += sign * num_queued_tokens(spec)

    def num_blocks_to_start(self, request: Request) -> int:
        """A choice with a leader takes over the prompt, all but one block."""
        if request.spec.leader_id is not None and request.num_lives == 0:
            return 1
        return self._num_blocks_for(request.num_tokens)

    def num_blocks_of_first(self, num_requests: int) -> int:
        """About the blocks that the first of them need to start; parked ones come last and need one each.

        Higher classes first, in each one request a tenant and then the others: an estimate in O(num_requests).
        """
        ready = list(itertools.islice(itertools.chain.from_iterable(self._lanes.values()), max(num_requests, 0)))
        num_parked = self.num_requests - sum(map(len, self._lanes.values()))
        return sum(map(self.num_blocks_to_start, ready)) + min(max(num_requests - len(ready), 0), num_parked)

    def check(self, waiting: Iterable[Request]) -> None:
        """Assert that exactly `waiting` are here, in order, and that the sums are theirs."""
        here = list(itertools.chain(*self._lanes.values(), self.parked()))
        assert all(self._parked.values()), "something is kept that nobody waits for"
        assert self._key_of == {r.request_id: key for key, each in self._parked.items() for r in each}
        expected = list(waiting)
        assert len(here) == len(expected) == self.num_requests and set(here) == set(expected)
        for name, lane in self._lanes.items():
            lane.check()
            assert all(request.spec.slo.granted == name for request in lane)
        assert self.num_blocks == sum(map(self.num_blocks_to_start, here))
        for name in self.num_requests_by_class:
            members = [r.spec for r in here if r.spec.slo.granted == name]
            assert self.num_requests_by_class[name] == len(members)
            assert self.num_tokens_by_class[name] == sum(map(num_queued_tokens, members))
