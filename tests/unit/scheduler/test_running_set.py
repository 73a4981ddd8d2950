"""Who yields to whom."""

from scheduler.policy import Policy, new_request
from scheduler.request import Request
from scheduler.running_set import RunningSet
from scheduler.slo import SLOClasses
from tests.scheduler_builders import make_spec


def running() -> dict[str, Request]:
    policy = Policy("priority", SLOClasses())
    rows = (("batch", "batch", 0.0), ("new", "standard", 5.0), ("old", "standard", 1.0), ("top", "realtime", 9.0))
    return {n: new_request(make_spec(n, 4, 4, slo_class=c, arrival_s=t), 0, policy) for n, c, t in rows}


def test_juniors_come_lowest_class_first_and_newest_first() -> None:
    requests, live = running(), RunningSet()
    for request in requests.values():
        live.add(request)
    assert [r.request_id for r in live] == ["top", "old", "new", "batch"]
    assert [r.request_id for r in live.juniors(requests["top"])] == ["batch", "new", "old"]
    assert [r.request_id for r in live.juniors(requests["new"])] == ["batch"]
    assert list(live.juniors(requests["batch"])) == []


def test_below_is_strict() -> None:
    requests, live = running(), RunningSet()
    for request in requests.values():
        live.add(request)
    assert [r.request_id for r in live.below(requests["old"].rank)] == ["batch"]
    assert [r.request_id for r in live.below(0)] == ["batch", "new", "old"]
    assert list(live.below(3)) == []


def test_requests_may_leave_while_one_iterates() -> None:
    requests, live = running(), RunningSet()
    for request in requests.values():
        live.add(request)
    seen = []
    for request in live:
        seen.append(request.request_id)
        if request.request_id == "top":
            live.remove(requests["batch"])
    assert seen == ["top", "old", "new", "batch"] and len(live) == 3
    live.check([requests[n] for n in ("new", "old", "top")])
