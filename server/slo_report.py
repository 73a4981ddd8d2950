"""What `GET /v1/slo` shows: each class's targets, whether it is open, its queue, and how its promises are kept."""

from __future__ import annotations

from engine.messages import ClassFloorStats
from scheduler.slo import Outcome, SLOClass, SLOClasses
from server.metrics import Metrics


def build_slo_report(classes: SLOClasses, metrics: Metrics, scheduler_policy: str) -> dict[str, object]:
    """The body of `GET /v1/slo`, as plain JSON values; counts are since the server's start.

    `floor` is the fastest that the plan in force allows: null, and every class open, where no weights are streamed.
    `attainment` is met / (finished - cancelled) by class asked for: what was refused or failed counts as missed, a
    client that left in time does not count. `promises.rate` is kept / (kept + broken) by class granted. Both are null
    before the first request. `admission` is the one in force: "promise", or "caps" also where promises were asked for
    and cannot be made, because of the policy `fcfs` or since steps are not predicted; null before the engine is ready.
    `admission_margin` is the share of the time that promises leave unused, null where none are made; `refusals` counts
    by reason.
    """
    counts, refusals = metrics.request_counts(), metrics.refusals()
    waiting = metrics.waiting_by_class()
    return {
        "object": "slo",
        "default_class": classes.default.name,
        "scheduler_policy": scheduler_policy,
        "admission": metrics.admission,
        "admission_margin": metrics.admission_margin,
        "classes": [
            {
                **_describe(c, counts[c.name], waiting[c.name], metrics.class_floor(c.name)),
                "refusals": refusals[c.name],
            }
            for c in classes
        ],
    }


def _describe(
    slo_class: SLOClass, counts: dict[str, int], num_waiting: int, floor: ClassFloorStats | None
) -> dict[str, object]:
    outcomes = {outcome.value: counts[outcome.value] for outcome in Outcome}
    num_finished = sum(outcomes.values())
    kept, broken = counts["promises_kept"], counts["promises_broken"]
    return {
        "name": slo_class.name,
        "rank": slo_class.rank,
        "service_tiers": list(slo_class.service_tiers),
        "targets": {
            "ttft_base_ms": _ms(slo_class.ttft_base_s),
            "ttft_per_1k_tokens_ms": _ms(slo_class.ttft_per_1k_tokens_s),
            "tpot_ms": _ms(slo_class.tpot_s),
            "max_stall_ms": _ms(slo_class.max_stall_s),
        },
        "objective": slo_class.objective,
        "share": slo_class.share,
        "protected": slo_class.protected,
        "when_infeasible": slo_class.when_infeasible,
        "degrade_to": slo_class.degrade_to,
        "floor": None if floor is None else {"ttft_ms": _ms(floor.floor_ttft_s), "tpot_ms": _ms(floor.floor_tpot_s)},
        "open": floor is None or floor.is_open,
        "best_effort": floor is not None and floor.is_best_effort,
        "queue": {
            "waiting": num_waiting,
            "cap_tokens": slo_class.queue_cap_tokens,
            "max_wait_s": slo_class.max_wait_s,
        },
        "counts": {"offered": counts["offered"], "live": counts["offered"] - num_finished, **outcomes},
        "attainment": _ratio(outcomes[Outcome.MET.value], num_finished - outcomes[Outcome.CANCELLED.value]),
        "promises": {"kept": kept, "broken": broken, "rate": _ratio(kept, kept + broken)},
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 6)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
