"""How much is to be computed by when: the prompts that wait for a first token, in the order of service.

The test is the demand bound of earliest-deadline-first scheduling (Baruah, Mok and Rosier, RTSS 1990): nobody is late
if, for every deadline, what is served before it fits before it. The curve holds for any fixed order of service.

Sorted runs of a few dozen entries with sums: a change is O(log n) and one small memmove, and a test passes over a run
in one step where the whole run is in time by its first deadline.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable

from scheduler.request import OrderKey

RUN_ENTRIES = 32
"""A run is split in two when it holds twice as many."""


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Prefill to compute."""

    num_tokens: int = 0
    num_pairs: float = 0.0
    """Of a query and a key: what the part costs that grows with the prefix."""

    @staticmethod
    def between(start: int, end: int) -> Work:
        """Tokens start..end-1 of one sequence; how they are cut into chunks does not matter."""
        num_tokens = max(end - start, 0)
        return Work(num_tokens, num_tokens * (start + num_tokens / 2))

    def __add__(self, other: Work) -> Work:
        return Work(self.num_tokens + other.num_tokens, self.num_pairs + other.num_pairs)


@dataclasses.dataclass(frozen=True, slots=True)
class WorkCost:
    """Seconds that work takes beside the decodes; both coefficients are at least 0."""

    s_per_token: float
    s_per_pair: float
    decode_share: float = 0.0
    """Of that time, what the decodes take, 0..1."""
    credit_s: float = 0.0
    """Of what the decodes take, so much need not be taken yet: they are ahead of their deadlines."""

    def stretched(self, factor: float) -> WorkCost:
        """The same work takes `factor` times as long."""
        return dataclasses.replace(self, s_per_token=self.s_per_token * factor, s_per_pair=self.s_per_pair * factor)

    def seconds(self, num_tokens: int, num_pairs: float) -> float:
        """Grows with both."""
        total_s = self.s_per_token * num_tokens + self.s_per_pair * num_pairs
        return total_s - min(self.credit_s, self.decode_share * total_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Lateness:
    """What letting one more in would do."""

    finish_s: float
    """When its own work would be done."""
    own_s: float
    """How much later that is than its deadline; 0 or less: in time."""
    others_s: float
    """How late the worst of those behind it would be, of what is not lost already; 0 or less: none."""


@dataclasses.dataclass(slots=True)
class _Entry:
    key: OrderKey
    due_s: float
    """Infinite: nothing was promised."""
    work: Work


class _Run:
    """Neighbours in the order of service."""

    __slots__ = ("entries", "first_due_s", "num_pairs", "num_tokens")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.refresh()

    def refresh(self) -> None:
        """The sums, after a change."""
        self.num_tokens = sum(e.work.num_tokens for e in self.entries)
        self.num_pairs = math.fsum(e.work.num_pairs for e in self.entries)
        self.first_due_s = min((e.due_s for e in self.entries), default=math.inf)


class DemandCurve:
    """Owns the entries, by request id."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def put(self, request_id: str, key: OrderKey, due_s: float, work: Work) -> None:
        """It waits for a token due then; in the place of what was known of it.

        Args:
            key: no other request's.
            due_s: infinite: it is served in its place, and nothing was promised.
        """
        self.drop(request_id)
        entry = self._entries[request_id] = _Entry(key, due_s, work)
        if not self._runs:
            self._runs.append(_Run([entry]))
            return
        index = self._run_of(key)
        run = self._runs[index]
        bisect.insort(run.entries, entry, key=_key)
        if len(run.entries) >= 2 * RUN_ENTRIES:
            self._runs.insert(index + 1, _Run(run.entries[RUN_ENTRIES:]))
            del run.entries[RUN_ENTRIES:]
        run.refresh()

    def set_work(self, request_id: str, work: Work) -> None:
        """What is left of it. Does nothing for an id that is not here."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry.work = work
            self._runs[self._run_of(entry.key)].refresh()

    def drop(self, request_id: str) -> None:
        """It has its token, or left. Does nothing for an id that is not here."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        index = self._run_of(entry.key)
        run = self._runs[index]
        del run.entries[bisect.bisect_left(run.entries, entry.key, key=_key)]
        if run.entries:
            run.refresh()
        else:
            del self._runs[index]

    def total(self) -> Work:
        """Of all entries."""
        return Work(sum(r.num_tokens for r in self._runs), math.fsum(r.num_pairs for r in self._runs))

    def lateness(
        self, key: OrderKey, due_s: float, work: Work, cost: WorkCost, least: WorkCost, now_s: float, lag_s: float
    ) -> Lateness:
        """What becomes of the promises if `work`, due at `due_s`, is served in the place of `key`.

        A promise that cannot be kept even if its work came next and at the least cost is lost: it holds up nobody.

        Args:
            least: what work costs with nothing beside it.
            lag_s: what comes on top of any work: the step in flight, the rest of the last step.
        """
        start_s = now_s + lag_s
        index = self._run_of(key) if self._runs else 0
        num_tokens = sum(r.num_tokens for r in self._runs[:index])
        num_pairs = math.fsum(r.num_pairs for r in self._runs[:index])
        behind: list[_Entry] = []
        if index < len(self._runs):
            run = self._runs[index]
            place = bisect.bisect_left(run.entries, key, key=_key)
            num_tokens += sum(e.work.num_tokens for e in run.entries[:place])
            num_pairs += math.fsum(e.work.num_pairs for e in run.entries[:place])
            behind = run.entries[place:]
        num_tokens += work.num_tokens
        num_pairs += work.num_pairs
        finish_s = start_s + cost.seconds(num_tokens, num_pairs)
        others_s = -math.inf
        for run in [_Run(behind), *self._runs[index + 1 :]] if behind else self._runs[index + 1 :]:
            if start_s + cost.seconds(num_tokens + run.num_tokens, num_pairs + run.num_pairs) > run.first_due_s:
                others_s = max(others_s, _worst(run.entries, num_tokens, num_pairs, cost, least, now_s, lag_s))
            num_tokens += run.num_tokens
            num_pairs += run.num_pairs
        return Lateness(finish_s, finish_s - due_s, others_s)

    def check(self, request_ids: Iterable[str]) -> None:
        """Assert that the entries are of these live requests, in order, and the sums are theirs."""
        assert set(self._entries) <= set(request_ids), "a request that left is waited for"
        in_order = [entry for run in self._runs for entry in run.entries]
        assert in_order == sorted(self._entries.values(), key=_key), "an entry is lost or out of order"
        for run in self._runs:
            assert 0 < len(run.entries) < 2 * RUN_ENTRIES
            assert run.num_tokens == sum(e.work.num_tokens for e in run.entries)
            assert run.num_pairs == math.fsum(e.work.num_pairs for e in run.entries)
            assert run.first_due_s == min(e.due_s for e in run.entries)
            assert all(e.work.num_tokens >= 0 for e in run.entries)

    def _run_of(self, key: OrderKey) -> int:
        """Index of the run that holds `key`, or in which it has its place."""
        return max(bisect.bisect_right(self._runs, key, key=_first_key) - 1, 0)


def _worst(
    entries: list[_Entry],
    num_tokens: int,
    num_pairs: float,
    cost: WorkCost,
    least: WorkCost,
    now_s: float,
    lag_s: float,
) -> float:
    """How late the worst of the entries is behind so much work, those that are lost anyway left out."""
    worst_s = -math.inf
    for entry in entries:
        own = entry.work
        num_tokens += own.num_tokens
        num_pairs += own.num_pairs
        late_s = now_s + lag_s + cost.seconds(num_tokens, num_pairs) - entry.due_s
        if late_s > worst_s and now_s + least.seconds(own.num_tokens, own.num_pairs) <= entry.due_s:
            worst_s = late_s
    return worst_s


def _key(entry: _Entry) -> OrderKey:
    return entry.key


def _first_key(run: _Run) -> OrderKey:
    return run.entries[0].key
