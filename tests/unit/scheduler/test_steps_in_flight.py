"""Steps between schedule and update: order, results, and the references they keep."""

import pytest

from scheduler.block_pool import BlockPool
from scheduler.output import RequestResult, SchedulerOutput, StepResult
from scheduler.request import FinishReason
from scheduler.steps_in_flight import InFlightStep, StepEntry, StepsInFlight
from tests.scheduler_builders import make_request

A, B = make_request("a", 4, 2), make_request("b", 4, 2)


def in_flight(step_id: int) -> InFlightStep:
    return InFlightStep(step_id, (StepEntry(A, 4, True, 0), StepEntry(B, 2, False, 0)), [])


def result(step_id: int, *results: RequestResult) -> StepResult:
    return StepResult(step_id, results)


GOOD = (RequestResult("b", 0, None, ()), RequestResult("a", 1, None, ()))


def test_steps_come_back_oldest_first_with_results_in_any_order() -> None:
    steps = StepsInFlight(2, BlockPool(1))
    steps.push(in_flight(0))
    steps.push(in_flight(1))
    with pytest.raises(ValueError, match="oldest in flight is 0"):
        steps.pop(SchedulerOutput(1, 0.0, ()), result(1, *GOOD))
    step, results = steps.pop(SchedulerOutput(0, 0.0, ()), result(0, *GOOD))
    assert step.step_id == 0 and [one.request_id for one in results] == ["a", "b"]


def test_no_more_steps_than_allowed() -> None:
    steps = StepsInFlight(1, BlockPool(1))
    steps.check_room()
    steps.push(in_flight(0))
    with pytest.raises(RuntimeError, match="step 0 must be updated"):
        steps.check_room()


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ((), "0 results for 2"),
        (GOOD[:1], "1 results for 2"),
        ((GOOD[0], GOOD[0]), "no result for 'a'"),
        ((GOOD[0], RequestResult("c", 1, None, ())), "no result for 'a'"),
        ((GOOD[0], RequestResult("a", 0, None, ())), "0 samples of 'a'"),
        ((RequestResult("b", 1, None, ()), GOOD[1]), "1 samples of 'b'"),
    ],
)
def test_results_that_do_not_fit_change_nothing(results: tuple[RequestResult, ...], message: str) -> None:
    steps = StepsInFlight(1, BlockPool(1))
    steps.push(in_flight(0))
    with pytest.raises(ValueError, match=message):
        steps.pop(SchedulerOutput(0, 0.0, ()), result(0, *results))
    steps.pop(SchedulerOutput(0, 0.0, ()), result(0, *GOOD))


def test_an_error_needs_no_sample() -> None:
    steps = StepsInFlight(1, BlockPool(1))
    steps.push(in_flight(0))
    failed = RequestResult("a", 0, FinishReason.ERROR, ())
    assert steps.pop(SchedulerOutput(0, 0.0, ()), result(0, GOOD[0], failed))[1][0] is failed


def test_nothing_in_flight_is_said_so() -> None:
    with pytest.raises(ValueError, match="none is in flight"):
        StepsInFlight(1, BlockPool(1)).pop(SchedulerOutput(0, 0.0, ()), result(0))


def test_the_youngest_step_that_uses_a_request_holds_its_blocks() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    pool.acquire(blocks[:1])
    steps = StepsInFlight(2, pool)
    old, young = in_flight(0), InFlightStep(1, (StepEntry(A, 1, True, 0),), [])
    steps.push(old)
    steps.push(young)
    assert steps.hold(A, blocks[:2]) and steps.hold(B, blocks[2:])
    assert (old.held_block_ids, young.held_block_ids) == (blocks[2:], blocks[:2])
    assert steps.num_blocks_coming() == 2, "one of the three has another owner"
    assert not steps.hold(make_request("c", 4, 1), [])
