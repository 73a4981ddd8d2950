"""What a scheduler counts and when tokens came out, computed anew from the calls and the answers."""

from __future__ import annotations

import dataclasses
import itertools
import math

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

    def __init__(self, classes: SLOClasses, egress_s: float, *, has_promises: bool) -> None:
        """
        Args:
            has_promises: guaranteed classes get a promise, which is kept or broken.
        """
        self._classes = classes
        self._egress_s = egress_s
        self._has_promises = has_promises
        self._last_event_s = -math.inf
        """When a request started or had a token."""
        self.num_kept = 0
        self.num_broken = 0
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
        target_s = spec.slo.ttft_target_s(self._classes.get(spec.slo.granted), spec.num_prompt_tokens)
        self._live[spec.request_id] = Counted(spec, ttft_target_s=target_s)
        self._by_class[spec.slo.granted] += 1

    def left(self, name: str, outcome: str) -> None:
        counted = self._live.pop(name)
        self._by_class[counted.spec.slo.granted] -= 1
        self.num_expired += outcome == "expired"
        if not self._has_promises or self._classes.get(counted.spec.slo.granted).when_infeasible == "queue":
            return
        if counted.spec.slo.ttft_s is not None or counted.spec.slo.tpot_s is not None:
            return  # targets of its own say nothing of what others get
        has_ended, is_kept = outcome in ("stop", "length"), self._broken(counted) is None
        if outcome != "error" and (has_ended or not is_kept):  # whoever leaves in time counts neither way
            self.num_kept += is_kept
            self.num_broken += not is_kept

    def _broken(self, counted: Counted) -> str | None:
        """Which of the targets was missed, on the scheduler's clock; None: none so far."""
        times_s, spec = counted.times_s, counted.spec
        slo_class = self._classes.get(spec.slo.granted)
        tpot_s = slo_class.tpot_s if spec.slo.tpot_s is None else spec.slo.tpot_s
        end_s = math.inf if spec.slo.e2e_deadline_s is None else spec.slo.e2e_deadline_s
        due_s = spec.arrival_s + min(counted.ttft_target_s, end_s) - self._egress_s
        if not times_s:
            return "no first token" if spec.max_tokens and self._last_event_s > due_s else None
        if times_s[0] > due_s + ROUNDING_S:
            return "a late first token"
        if times_s[-1] - times_s[0] > (len(times_s) - 1) * tpot_s + ROUNDING_S:
            return "late tokens"
        stall_s = max((b - a for a, b in itertools.pairwise(times_s)), default=0.0)
        limit_s = math.inf if slo_class.max_stall_s is None else max(slo_class.max_stall_s, tpot_s)
        return "a stall" if stall_s > limit_s + ROUNDING_S else None

    def started(self, name: str, num_known: int, ttft_target_s: float, now_s: float, *, is_shared: bool) -> None:
        """For the first time, behind so many tokens of its leader or of the prefix cache."""
        counted = self._live[name]
        counted.admitted_s, counted.ttft_target_s = now_s, ttft_target_s
        self._last_event_s = now_s
        counted.num_computed = num_known
        if is_shared:
            self.num_prompt_shared += num_known
        else:
            self.num_prompt_cached += num_known

    def restarted(self, name: str, num_known: int, now_s: float) -> None:
        """After a preemption, behind so many tokens of the prefix cache."""
        self._last_event_s = now_s
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
        self._last_event_s = now_s

    def check_kept(self, name: str) -> None:
        """The scheduler says that no token of it was late: then the targets are kept, as a client measures them."""
        counted = self._live[name]
        if counted.times_s:
            assert self._broken(counted) is None, f"{name}: {self._broken(counted)}"
        self.num_without_misses += len(counted.times_s) > 1

    def check(self, stats: SchedulerStats, running: set[str]) -> None:
        """Between any two calls."""
        assert stats.prompt_tokens_computed == self.num_prompt_computed
        assert stats.prompt_tokens_cached == stats.prefix_cache_hits == self.num_prompt_cached
        assert stats.prompt_tokens_shared == self.num_prompt_shared
        assert stats.recomputed_tokens == self.num_recomputed
        assert stats.generation_tokens == self.num_sampled
        assert stats.discarded_tokens == self.num_discarded
        assert stats.num_expired == self.num_expired
        assert (stats.promises.num_kept, stats.promises.num_broken) == (self.num_kept, self.num_broken)
        waiting = dict(self._by_class)
        for name in running:
            waiting[self._live[name].spec.slo.granted] -= 1
        assert stats.num_waiting_by_class == waiting
