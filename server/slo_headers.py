"""The response headers that carry a request's promise, in the open before the first byte of the body.

`x-slo-class` is the class asked for, `x-slo-granted` the one it is served in; `x-slo-ttft-target-ms`,
`x-slo-tpot-target-ms` and `x-slo-max-stall-ms` are the targets in force in the granted class, after the cached part of
the prompt is known, which a client cannot know by itself. `x-slo-max-stall-ms` is absent where stalls are not judged.
`x-slo-best-effort: 1` says that it will be late: the granted class's targets cannot be met while weights are streamed,
or its first token is overdue already.
"""

from __future__ import annotations

from scheduler.slo import SLOClasses
from server.request_record import RequestRecord
from server.slo_verdict import granted_targets


def promise_headers(record: RequestRecord, classes: SLOClasses) -> dict[str, str]:
    """The headers of an admitted request."""
    targets = granted_targets(record, classes)
    headers = {
        "x-slo-class": record.slo.requested,
        "x-slo-granted": record.granted or record.slo.requested,
        "x-slo-ttft-target-ms": _milliseconds(targets.ttft_s),
        "x-slo-tpot-target-ms": _milliseconds(targets.tpot_s),
    }
    if targets.max_stall_s is not None:
        headers["x-slo-max-stall-ms"] = _milliseconds(targets.max_stall_s)
    if record.is_best_effort:
        headers["x-slo-best-effort"] = "1"
    return headers


def granted_tier(record: RequestRecord, classes: SLOClasses) -> str:
    """The `service_tier` a response reports: the first of the granted class, or "default" where it has none."""
    tiers = classes.get(record.granted or record.slo.requested).service_tiers
    return tiers[0] if tiers else "default"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000.0:.3f}".rstrip("0").rstrip(".")
