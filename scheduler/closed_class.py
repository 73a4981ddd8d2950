"""Classes whose targets the plan in force cannot meet whatever the load: which, and what their clients are told."""

from __future__ import annotations

from scheduler.link import LinkSnapshot
from scheduler.slo import SLO, SLOClass

SEE_CLASSES = "ask for another class (GET /v1/slo shows which are open)"


def why_closed(slo: SLO, slo_class: SLOClass, link: LinkSnapshot) -> str | None:
    """Why the plan cannot meet the targets in force, the class's or the request's own; None: it can, or may be late."""
    floor = link.floor(slo_class.name)
    if floor is None or slo_class.when_infeasible == "queue":
        return None
    ttft_s = slo_class.ttft_base_s if slo.ttft_s is None else slo.ttft_s
    if slo.tpot_s is None:
        if floor.is_open:
            return None
        what, whose, first = f"class {slo_class.name!r} is closed", "its targets", ""
    else:
        if slo.tpot_s >= floor.tpot_s and (floor.is_open or floor.ttft_s <= ttft_s):
            return None
        what, whose = f"the target of {slo.tpot_s * 1000:g} ms per output token cannot be met", "the targets in force"
        first = f"ask for at least {floor.tpot_s * 1000:.0f} ms per output token, "
    return (
        f"{what}: this server's floors are {floor.tpot_s * 1000:.0f} ms per output token "
        f"and {floor.ttft_s * 1000:.0f} ms to the first one, {whose} {slo.tpot_target_s(slo_class) * 1000:.0f} ms and "
        f"{ttft_s * 1000:.0f} ms; {first}{other_class(slo_class)}"
    )


def other_class(slo_class: SLOClass) -> str:
    """The way out that every refused class has."""
    if slo_class.degrade_to is None:
        return SEE_CLASSES
    return f"{SEE_CLASSES}, or consent to class {slo_class.degrade_to!r} with slo.degrade or x-slo-degrade: 1"
