"""What the demand for memory says of the promises that running requests were made."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler.block_pool import BlockPool
from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, ClassFloor, LinkSnapshot
from scheduler.memory_demand import memory_demand
from scheduler.output import MemoryDemand, ScheduledRequest
from scheduler.policy import Policy, new_request
from scheduler.running_set import RunningSet
from scheduler.slo import SLO, SLOClasses
from scheduler.step_timing import DecodePace, StepTiming
from scheduler.waiting_queue import WaitingQueue
from tests.latency_builders import STREAMING, decodes, make_coefficients
from tests.scheduler_builders import make_spec

CLASSES = SLOClasses()
POLICY = Policy("priority", CLASSES)


def demand(
    *running: tuple[str, float | None], link: LinkSnapshot = NO_LINK, pace: DecodePace | None = None
) -> MemoryDemand:
    """Of requests with these classes and TPOT targets of their own; nobody waits."""
    requests = RunningSet()
    for index, (name, own_s) in enumerate(running):
        spec = make_spec(f"r{index}", 4, 4, slo=SLO(name, name, tpot_s=own_s))
        requests.add(new_request(spec, 0, POLICY))
    waiting = WaitingQueue(lambda num_tokens: num_tokens, CLASSES.names, is_fair=True)
    return memory_demand(requests, waiting, BlockPool(8), 4, CLASSES, link, pace)


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ((), None),
        ((("standard", None),), 0.08),
        ((("standard", None), ("interactive", None)), 0.05),
        ((("standard", 0.03), ("interactive", None)), 0.03),
        ((("interactive", 0.2),), 0.2),
        ((("batch", None), ("batch", 0.01)), None),
    ],
)
def test_the_tightest_promise_is_that_of_a_protected_request_that_runs(
    running: tuple[tuple[str, float | None], ...], expected: float | None
) -> None:
    assert demand(*running).tightest_tpot_s == expected


def test_a_promise_that_the_floor_breaks_anyway_does_not_count() -> None:
    floors = (
        ClassFloor("interactive", is_best_effort=True, tpot_s=0.06),
        ClassFloor("standard", tpot_s=0.06),
    )
    link = LinkSnapshot(classes=floors)
    assert demand(("interactive", None), ("standard", None), link=link).tightest_tpot_s == 0.08
    assert demand(("interactive", None), ("standard", 0.05), link=link).tightest_tpot_s is None
    assert demand(("interactive", 0.07), ("standard", None), link=link).tightest_tpot_s == 0.07


def test_requests_are_late_where_decodes_take_longer_than_promised_and_fewer_layers_would_help() -> None:
    running = ("standard", None)
    assert demand(running, pace=DecodePace(0.09, 0.07)).is_late
    assert not demand(running, pace=DecodePace(0.09, 0.09)).is_late, "computing bounds it"
    assert not demand(running, pace=DecodePace(0.08, 0.07)).is_late
    assert not demand(("batch", None), pace=DecodePace(0.5, 0.4)).is_late, "nothing was promised"
    assert demand(running, pace=DecodePace(0.09, 0.07)).decode_s == 0.09
    assert demand(running) == dataclasses.replace(demand(running), decode_s=None, is_late=False)


def test_promises_go_with_those_that_leave() -> None:
    running = RunningSet()
    requests = [
        new_request(make_spec(f"r{i}", 4, 4, slo=SLO("standard", "standard", tpot_s=own_s)), 0, POLICY)
        for i, own_s in enumerate((None, None, 0.01))
    ]
    for request in requests:
        running.add(request)
    assert set(running.promises) == {("standard", None), ("standard", 0.01)}
    running.remove(requests[2])
    running.remove(requests[0])
    assert set(running.promises) == {("standard", None)}
    running.check(requests[1:2])
    running.remove(requests[1])
    assert not running.promises


def scheduled(name: str, num_tokens: int, position: int) -> ScheduledRequest:
    return ScheduledRequest(name, num_tokens, position, 0, (), True)


def test_the_pace_of_decodes_is_predicted_without_the_prefill_beside_them() -> None:
    model = LatencyModel(make_coefficients())
    timing = StepTiming(model)
    assert timing.decode_pace(STREAMING) is None, "no step was begun"
    timing.begin((scheduled("a", 1, 99), scheduled("b", 1, 9), scheduled("c", 50, 0)), STREAMING, is_alone=True)
    pace = timing.decode_pace(STREAMING)
    fewer = dataclasses.replace(STREAMING, num_streamed_layers=9)
    expected = decodes(100, 10)
    assert pace == DecodePace(model.p95_s(expected, STREAMING), model.p95_s(expected, fewer))
    assert timing.decode_pace(NO_LINK) is None, "no weights can be streamed"
    resident = LinkSnapshot(num_resident_layers=8)
    at_zero = timing.decode_pace(resident)
    assert at_zero is not None and at_zero.p95_s == at_zero.p95_with_fewer_s == model.p95_s(expected, resident)
    timing.begin((scheduled("c", 50, 0),), STREAMING, is_alone=True)
    assert timing.decode_pace(STREAMING) is None, "nothing decodes"
    assert StepTiming(None).decode_pace(STREAMING) is None


def test_a_step_that_the_link_bounds_is_shorter_with_a_layer_fewer() -> None:
    timing = StepTiming(LatencyModel(make_coefficients()))
    for num_layers, is_shorter in ((10, False), (100, True)):
        link = dataclasses.replace(STREAMING, num_streamed_layers=num_layers)
        timing.begin((scheduled("a", 1, 99),), link, is_alone=True)
        pace = timing.decode_pace(link)
        assert pace is not None and (pace.p95_with_fewer_s < pace.p95_s) == is_shorter
