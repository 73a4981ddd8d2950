"""Short ways to make requests and take steps in tests of the scheduler."""

from __future__ import annotations

import dataclasses

from scheduler.config import SchedulerConfig
from scheduler.link import NO_LINK
from scheduler.output import FinishedRequest, RequestResult, SchedulerOutput, StepResult
from scheduler.policy import Policy, new_request
from scheduler.request import FinishReason, Request, RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLO, SLOClass, SLOClasses

BLOCK_SIZE = 4
NOW_S = 10.0
"""When steps are taken unless a test says otherwise; every arrival in these tests is before."""


def make_spec(
    name: str,
    num_prompt_tokens: int,
    max_tokens: int,
    *,
    slo_class: str = "standard",
    arrival_s: float = 0.0,
    group_id: str | None = None,
    leader_id: str | None = None,
    prompt: str | None = None,
    slo: SLO | None = None,
    reads_prefix_cache: bool = True,
    tenant: str = "",
) -> RequestSpec:
    """A spec; two with the same `prompt` share their first tokens, as far as both go."""
    label = name if prompt is None else prompt
    return RequestSpec(
        request_id=name,
        group_id=name if group_id is None else group_id,
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=max_tokens,
        block_hashes=tuple(f"{label}:{i}".encode() for i in range(num_prompt_tokens // BLOCK_SIZE)),
        slo=SLO(slo_class, slo_class) if slo is None else slo,
        arrival_s=arrival_s,
        leader_id=leader_id,
        reads_prefix_cache=reads_prefix_cache,
        tenant=tenant,
    )


def respecify(request: Request, **changes: object) -> None:
    """Change a request's spec, and what it keeps of it."""
    request.spec = dataclasses.replace(request.spec, **changes)  # type: ignore[arg-type]
    request.__post_init__()


def make_group(
    name: str, n: int, num_prompt_tokens: int, max_tokens: int, **options: object
) -> tuple[RequestSpec, ...]:
    """n choices `name/0`... of one prompt; the first leads."""
    return tuple(
        make_spec(
            f"{name}/{i}",
            num_prompt_tokens,
            max_tokens,
            group_id=name,
            leader_id=f"{name}/0" if i else None,
            prompt=name,
            **options,  # type: ignore[arg-type]
        )
        for i in range(n)
    )


def make_request(name: str, num_prompt_tokens: int, max_tokens: int, **options: object) -> Request:
    """A waiting request in FCFS order."""
    return new_request(make_spec(name, num_prompt_tokens, max_tokens, **options), 0, Policy("fcfs", SLOClasses()))  # type: ignore[arg-type]


def make_scheduler(num_blocks: int, *, classes: tuple[SLOClass, ...] = DEFAULT_CLASSES, **options: object) -> Scheduler:
    """Blocks of 4 tokens, at most 4 running, 32 tokens a step; a model as long as the pool, plus the last output."""
    settings: dict[str, object] = {"max_num_batched_tokens": 32, "max_num_seqs": 4, "block_size": BLOCK_SIZE}
    config = SchedulerConfig(**{**settings, **options})  # type: ignore[arg-type]
    return Scheduler(config, SLOClasses(classes), num_blocks, num_blocks * BLOCK_SIZE + 1)


def result_of(
    output: SchedulerOutput,
    stops: tuple[str, ...] = (),
    errors: tuple[str, ...] = (),
) -> StepResult:
    """Every request of the step went well, but for `errors`; those in `stops` met a stop token."""
    results = []
    for scheduled in output.scheduled:
        name = scheduled.request_id
        reason = FinishReason.ERROR if name in errors else FinishReason.STOP if name in stops else None
        results.append(RequestResult(name, int(scheduled.samples and name not in errors), reason, ()))
    return StepResult(output.step_id, tuple(results))


def step(
    scheduler: Scheduler, now_s: float = NOW_S, stops: tuple[str, ...] = (), errors: tuple[str, ...] = ()
) -> tuple[SchedulerOutput, tuple[FinishedRequest, ...]]:
    """One whole step, checked."""
    output = scheduler.schedule(now_s, NO_LINK)
    finished = scheduler.update(output, result_of(output, stops, errors), now_s)
    scheduler.check()
    return output, finished


def tokens_of(output: SchedulerOutput) -> dict[str, int]:
    """The step as a map of requests to numbers of tokens."""
    return {s.request_id: s.num_tokens for s in output.scheduled}
