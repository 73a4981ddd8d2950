"""What a scheduler counts and when tokens came out, computed anew from the calls and the answers."""

from __future__ import annotations

import dataclasses
import itertools

from scheduler.request import RequestSpec
from scheduler.slo import SLOClasses
from scheduler.stats import SchedulerStats

ROUNDING_S = 1e-9


@dataclasses.dataclass
class Counted:
    """One request since it arrived."""

    spec: RequestSpec
    num_computed: int = 0
    """Leading tokens that were computed at some time, or found in the cache at a start."""
    admitted_s: float | None = None
    ttft_target_s: float = 0.0
    times_s: list[float] = dataclasses.field(default_factory=list)


class CountBooks:
    """Totals over all requests, those that have left included."""

    def __init__(self, classes: SLOClasses) -> None:
        self._classes = classes
        self._live: dict[str, Counted] = {}
        self._by_class = dict.fromkeys(classes.names, 0)
        self.num_prompt_computed = 0
        self.num_prompt_cached = 0
        self.num_prompt_shared = 0
        self.num_recomputed = 0
        self.num_sampled = 0
        self.num_discarded = 0
        self.num_expired = 0
        self.num_without_misses = 0
        """Requests of two tokens or more that kept all their deadlines."""

    def added(self, spec: RequestSpec) -> None:
        self._live[spec.request_id] = Counted(spec)
        self._by_class[spec.slo.granted] += 1

    def left(self, name: str, *, has_expired: bool) -> None:
        self._by_class[self._live.pop(name).spec.slo.granted] -= 1
        self.num_expired += has_expired

    def started(self, name: str, num_known: int, ttft_target_s: float, now_s: float, *, is_shared: bool) -> None:
        """For the first time, behind so many tokens of its leader or of the prefix cache."""
        counted = self._live[name]
        counted.admitted_s, counted.ttft_target_s = now_s, ttft_target_s
        counted.num_computed = num_known
        if is_shared:
            self.num_prompt_shared += num_known
        else:
            self.num_prompt_cached += num_known

    def restarted(self, name: str, num_known: int) -> None:
        """After a preemption, behind so many tokens of the prefix cache."""
        self._live[name].num_computed = max(self._live[name].num_computed, num_known)

    def computed(self, name: str, start: int, end: int) -> None:
        """Tokens start..end-1 of it, and that was not for nothing."""
        counted = self._live[name]
        new = range(max(start, counted.num_computed), end)
        self.num_recomputed += end - start - len(new)
        self.num_prompt_computed += sum(position < counted.spec.num_prompt_tokens for position in new)
        counted.num_computed = max(counted.num_computed, end)

    def sampled(self, name: str, now_s: float) -> None:
        self.num_sampled += 1
        counted = self._live[name]
        assert counted.admitted_s is not None
        assert counted.spec.arrival_s <= counted.admitted_s <= (counted.times_s or [now_s])[-1] <= now_s
        counted.times_s.append(now_s)

    def check_kept(self, name: str) -> None:
        """The scheduler says that no token of it was late: then the targets are kept, as a client measures them."""
        counted = self._live[name]
        times_s, spec = counted.times_s, counted.spec
        slo_class = self._classes.get(spec.slo.granted)
        tpot_s = slo_class.tpot_s if spec.slo.tpot_s is None else spec.slo.tpot_s
        if not times_s:
            return
        assert times_s[0] - spec.arrival_s <= counted.ttft_target_s + ROUNDING_S, f"{name}: a late first token"
        assert times_s[-1] - times_s[0] <= (len(times_s) - 1) * tpot_s + ROUNDING_S, f"{name}: late tokens"
        stall_s = max((b - a for a, b in itertools.pairwise(times_s)), default=0.0)
        if slo_class.max_stall_s is not None:
            assert stall_s <= max(slo_class.max_stall_s, tpot_s) + ROUNDING_S, f"{name}: a stall"
        self.num_without_misses += len(times_s) > 1

    def check(self, stats: SchedulerStats, running: set[str]) -> None:
        """Between any two calls."""
        assert stats.prompt_tokens_computed == self.num_prompt_computed
        assert stats.prompt_tokens_cached == stats.prefix_cache_hits == self.num_prompt_cached
        assert stats.prompt_tokens_shared == self.num_prompt_shared
        assert stats.recomputed_tokens == self.num_recomputed
        assert stats.generation_tokens == self.num_sampled
        assert stats.discarded_tokens == self.num_discarded
        assert stats.num_expired == self.num_expired
        waiting = dict(self._by_class)
        for name in running:
            waiting[self._live[name].spec.slo.granted] -= 1
        assert stats.num_waiting_by_class == waiting
