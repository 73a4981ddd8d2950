"""A real scheduler on a virtual clock whose steps take exactly as long as predicted, and its promises judged anew."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import deque
from collections.abc import Iterable
from typing import Any

from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK
from scheduler.output import SchedulerOutput, Verdict, VerdictKind
from scheduler.ramp import Ramp
from scheduler.request import RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLO, SLOClass, SLOClasses
from scheduler.step_features import StepFeatures
from tests.scheduler_builders import result_of

EXACT = LatencyCoefficients(
    rows=Ramp(0.008, (64.0, 512.0), (2e-5, 4e-5)),
    samples=Ramp(0.001, (64.0,), (1e-5,)),
    s_per_decode_context_token=2e-8,
    s_per_prefill_pair=1e-8,
    sync_s=0.0005,
)
"""A step of a few decodes takes 10 ms; prompts are computed at 20,000 tokens a second."""


CHECK_EACH = 16
"""Steps from one check of everything to the next."""


@dataclasses.dataclass(slots=True)
class Served:
    """What became of one request, as its client would see it at once."""

    spec: RequestSpec
    verdict: Verdict
    ttft_s: float | None = None
    """Target told at the first start."""
    times_s: list[float] = dataclasses.field(default_factory=list)
    is_over: bool = False

    def broken(self, classes: SLOClasses) -> str | None:
        """What of the promise was not kept; None: everything was."""
        slo_class = classes.get(self.verdict.granted)
        if not self.times_s or self.ttft_s is None:
            return "no token"
        slack = 1e-9
        first_s = self.times_s[0] - self.spec.arrival_s
        if first_s > self.ttft_s + slack:
            return f"first token after {first_s:.4f} s, target {self.ttft_s:.4f} s"
        tpot_s = self.spec.slo.tpot_target_s(slo_class)
        took_s = self.times_s[-1] - self.times_s[0]
        if took_s > tpot_s * (len(self.times_s) - 1) + slack:
            return f"{took_s / (len(self.times_s) - 1):.4f} s a token, target {tpot_s:.4f} s"
        worst_s = max((b - a for a, b in itertools.pairwise(self.times_s)), default=0.0)
        if slo_class.max_stall_s is not None and worst_s > max(slo_class.max_stall_s, tpot_s) + slack:
            return f"a gap of {worst_s:.4f} s, target {slo_class.max_stall_s:.4f} s"
        return None


class PromiseRig:
    """Offers requests at their time of arrival and takes one step after the other."""

    def __init__(
        self,
        config: SchedulerConfig,
        classes: tuple[SLOClass, ...] = DEFAULT_CLASSES,
        num_blocks: int = 2048,
        coefficients: LatencyCoefficients = EXACT,
    ) -> None:
        self.config = config
        self.classes = SLOClasses(classes)
        self.scheduler = Scheduler(config, self.classes, num_blocks, 32_768, LatencyModel(coefficients))
        self.truth = LatencyModel(coefficients)
        self.now_s = 0.0
        self.num_steps = 0
        self.served: dict[str, Served] = {}
        self.output_tokens: dict[str, int] = {}
        """After which the model stops by itself."""

    def offer(self, spec: RequestSpec, num_output_tokens: int | None = None) -> Verdict:
        verdict = self.scheduler.add((spec,), self.now_s)
        self.served[spec.request_id] = Served(spec, verdict, is_over=verdict.kind is VerdictKind.REFUSE)
        if num_output_tokens is not None:
            self.output_tokens[spec.request_id] = num_output_tokens
        return verdict

    def step(self) -> SchedulerOutput:
        """One step from its start to its end."""
        output = self.scheduler.schedule(self.now_s, NO_LINK)
        for admission in output.admissions:
            self.served[admission.request_id].ttft_s = admission.ttft_target_s
        for expiry in output.expired:
            self.served[expiry.group_id].is_over = True
        if output.scheduled:
            self.now_s += self.truth.mean_s(StepFeatures.of(output.scheduled), NO_LINK)
        stops = []
        for scheduled in output.scheduled:
            if scheduled.samples:
                served = self.served[scheduled.request_id]
                served.times_s.append(self.now_s)
                if len(served.times_s) == self.output_tokens.get(scheduled.request_id):
                    stops.append(scheduled.request_id)
        for finished in self.scheduler.update(output, result_of(output, stops=tuple(stops)), self.now_s):
            self.served[finished.request_id].is_over = True
        self.num_steps += 1
        if self.num_steps % CHECK_EACH == 0:
            self.scheduler.check()
        return output

    def run(self, requests: Iterable[tuple[RequestSpec, int | None]]) -> None:
        """Until the last one is over."""
        coming = deque(sorted(requests, key=lambda item: item[0].arrival_s))
        while coming or self.scheduler.has_work():
            if coming and not self.scheduler.has_work():
                self.now_s = max(self.now_s, coming[0][0].arrival_s)
            while coming and coming[0][0].arrival_s <= self.now_s:
                self.offer(*coming.popleft())
            if self.scheduler.has_work():
                self.step()

    def promised(self) -> list[Served]:
        """Accepted into a class that makes promises."""
        return [
            s
            for s in self.served.values()
            if s.verdict.kind is not VerdictKind.REFUSE
            and self.classes.get(s.verdict.granted).when_infeasible != "queue"
        ]

    def broken(self) -> dict[str, str]:
        """Which promises were not kept, and how."""
        return {s.spec.request_id: why for s in self.promised() if (why := s.broken(self.classes)) is not None}


def draw_requests(
    seed: int,
    num_requests: int,
    rate_per_s: float,
    *,
    mix: dict[str, float],
    prompt_tokens: tuple[int, int] = (16, 1500),
    max_tokens: tuple[int, int] = (1, 150),
    **slo: Any,
) -> list[tuple[RequestSpec, int]]:
    """Poisson arrivals of a mix of classes, and how long each answer will be."""
    rng = random.Random(seed)
    names, weights = list(mix), list(mix.values())
    arrival_s = 0.0
    requests = []
    for index in range(num_requests):
        arrival_s += rng.expovariate(rate_per_s)
        name = rng.choices(names, weights)[0]
        most = rng.randint(*max_tokens)
        spec = RequestSpec(
            f"r{index}", f"r{index}", rng.randint(*prompt_tokens), most, (), SLO(name, name, **slo), arrival_s
        )
        requests.append((spec, rng.randint(1, most)))
    return requests
