"""Who may start before whom, by policy, computed from the calls and the answers alone."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from scheduler.chunk_tile import ChunkTile
from scheduler.config import SchedulerConfig
from scheduler.latency_model import LatencyModel
from scheduler.output import SchedulerOutput
from scheduler.policy import LENGTH_BIAS
from scheduler.prefill_pace import DECAY
from scheduler.request import RequestSpec
from scheduler.slo import SLOClass, SLOClasses
from tests.device_model import ModelSequence

ROUNDING_S = 1e-9
LACKS = frozenset({"no_seat", "no_blocks"})
"""Nobody of the same rank or below starts where one lacks these."""
NUM_BACKLOGS = 1200
"""Steps that are remembered: the oldest of more would count for nothing."""
_WEIGHTS = tuple(DECAY**age for age in range(NUM_BACKLOGS))
PUT_OFF = frozenset({"no_time", "decode_load", "share"})
"""Others go on where one does not fit, or where a class is owed its share."""


class StartBooks:
    """Keys and first deadlines of all requests, how fast prompts were worked off, and who could not be in time."""

    def __init__(self, config: SchedulerConfig, classes: SLOClasses, model: LatencyModel | None) -> None:
        """
        Args:
            model: as that of the scheduler when it was made; None: it has none.
        """
        self._policy = config.scheduler_policy
        self._egress_s = config.egress_s
        self._classes = classes
        is_timed = model is not None and self._policy != "fcfs"
        tile = ChunkTile(model if is_timed else None, config.block_size, config.max_num_batched_tokens)
        self._prior_s_per_token = tile.s_per_token
        self._backlogs: deque[tuple[float, int]] = deque(maxlen=NUM_BACKLOGS)
        """Seconds and prompt tokens of steps that left prompts over, the youngest first."""
        self._first_due_s: dict[str, float] = {}
        self._returned: set[str] = set()
        self.hopeless: set[str] = set()
        """Those whose first token could not be in time at some step, were everything else left."""

    def rank(self, spec: RequestSpec) -> int:
        """Whose seats and blocks it may take: those of larger ranks."""
        return 0 if self._policy == "fcfs" else self._class_of(spec).rank

    def key(self, spec: RequestSpec) -> tuple[int, float]:
        """Where it stands before equals are told apart; under `deadline`, as in an overload."""
        slo_class = self._class_of(spec)
        due_s = self._due_s(spec, spec.num_prompt_tokens)
        if self._policy == "fcfs":
            return 0, spec.arrival_s
        if self._policy == "deadline":
            due_s += LENGTH_BIAS * slo_class.ttft_per_1k_tokens_s * spec.num_prompt_tokens / 1000
        return (0 if self._policy == "edf" else slo_class.rank), due_s

    def _class_of(self, spec: RequestSpec) -> SLOClass:
        return self._classes.get(spec.slo.granted)

    def _due_s(self, spec: RequestSpec, num_uncached_tokens: int) -> float:
        slo_class, own_s = self._class_of(spec), spec.slo.ttft_s
        by_length_s = slo_class.ttft_base_s + slo_class.ttft_per_1k_tokens_s * num_uncached_tokens / 1000
        return self._no_later_than_end(spec, by_length_s if own_s is None else own_s)

    @staticmethod
    def _no_later_than_end(spec: RequestSpec, ttft_s: float) -> float:
        """A first token after the last one is due would be of no use."""
        return spec.arrival_s + (ttft_s if spec.slo.e2e_deadline_s is None else min(ttft_s, spec.slo.e2e_deadline_s))

    # What happens.

    def added(self, spec: RequestSpec) -> None:
        self._first_due_s[spec.request_id] = self._due_s(spec, spec.num_prompt_tokens) - self._egress_s

    def preempted(self, name: str) -> None:
        self._returned.add(name)

    def emitted(self, name: str) -> None:
        """Its first token is out: nobody waits for that any more."""
        self._first_due_s.pop(name, None)

    def left(self, name: str) -> None:
        self._first_due_s.pop(name, None)
        self._returned.discard(name)
        self.hopeless.discard(name)

    def stepped(self, output: SchedulerOutput, duration_s: float) -> None:
        """A step is done."""
        if duration_s > 0.0 and {"no_time", "no_tokens"} & set(output.reasons):
            num_tokens = sum(s.num_tokens for s in output.scheduled if s.num_tokens > 1 or not s.samples)
            self._backlogs.appendleft((duration_s, num_tokens))

    def _s_per_token(self) -> float | None:
        """Of a token of a prompt while there are more than fit: the younger a step, the more it counts."""
        num_tokens = sum(w * n for w, (_, n) in zip(_WEIGHTS, self._backlogs, strict=False))
        if num_tokens < 1.0:
            return self._prior_s_per_token
        return sum(w * s for w, (s, _) in zip(_WEIGHTS, self._backlogs, strict=False)) / num_tokens

    # What is asserted.

    def check(
        self,
        started: Sequence[ModelSequence],
        waiting: Sequence[ModelSequence],
        candidates: Sequence[ModelSequence],
        output: SchedulerOutput,
    ) -> None:
        """Of those that could have started instead, none was passed over without a reason.

        Args:
            started: in this step.
            waiting: after it, and not for a leader.
            candidates: all that may have had a turn in it, with prompts computed in part.
        """
        self._find_hopeless([*started, *waiting], output.now_s)
        for admission in output.admissions:
            spec = next(s.spec for s in started if s.request_id == admission.request_id)
            if admission.request_id in self._first_due_s:
                due_s = self._no_later_than_end(spec, admission.ttft_target_s)
                self._first_due_s[admission.request_id] = due_s - self._egress_s
        tenants = {s.spec.tenant for s in (*started, *waiting)}
        for start in started:
            for other in waiting:
                why = f"{start.request_id} overtakes {other.request_id} under {self._policy}: {output.reasons}"
                if start.spec.slo.granted == other.spec.slo.granted or self._policy == "fcfs":
                    assert self._may_go_first(start, other, has_one_tenant=len(tenants) == 1), why
                else:
                    rivals = [s for s in candidates if s.spec.slo.granted == other.spec.slo.granted]
                    assert self._may_overtake(start, rivals, frozenset(output.reasons)), why

    def _find_hopeless(self, sequences: Iterable[ModelSequence], now_s: float) -> None:
        pace_s = self._s_per_token()
        if self._policy != "deadline" or pace_s is None:
            return
        for sequence in sequences:
            due_s = self._first_due_s.get(sequence.request_id)
            if due_s is not None and now_s + pace_s * sequence.spec.num_prompt_tokens > due_s - ROUNDING_S:
                self.hopeless.add(sequence.request_id)

    def _may_go_first(self, start: ModelSequence, other: ModelSequence, *, has_one_tenant: bool) -> bool:
        """Within a class: by the order, but behind the others once it cannot be in time, and by turns of tenants.

        Whether there is an overload, and with it the part of length in the order of `deadline`, is not seen from here.
        """
        if start.order < other.order or other.request_id in self.hopeless:
            return True
        if (
            self._policy == "deadline"
            and self._due_s(start.spec, start.spec.num_prompt_tokens) <= self.key(other.spec)[1]
        ):
            return True
        if has_one_tenant or self._policy == "fcfs" or other.request_id in self._returned:
            return False
        return start.spec.tenant != other.spec.tenant or start.request_id in self._returned

    def _may_overtake(self, start: ModelSequence, rivals: list[ModelSequence], reasons: frozenset[str]) -> bool:
        """Whether a request may start before one of another class.

        Args:
            rivals: all candidates of that class.
        """
        is_higher = start.rank < rivals[0].rank
        if "no_time" in reasons:
            return True
        if self._policy == "priority":
            return is_higher
        if self._policy == "edf":
            # Any of them may be the first of its class, by turns of tenants; a higher class does not wait for memory.
            return any(start.order < s.order for s in rivals) or (is_higher and bool(LACKS & reasons))
        if PUT_OFF & reasons or any(s.request_id in self.hopeless for s in rivals):
            return True
        if not self._class_of(start.spec).protected:
            return is_higher and bool(LACKS & reasons)
        if is_higher or not self._class_of(rivals[0].spec).protected:
            return True
        # The first of a class has the earliest key, not always the earliest deadline; of one that came back nothing is
        # known: it waits for a later token.
        start_s = self._first_due_s.get(start.request_id, -math.inf)
        dues_s = (self._first_due_s.get(s.request_id, -math.inf) for s in rivals)
        return any(start_s < due_s for due_s in dues_s) or any(s.request_id in self._returned for s in rivals)
