"""The threads of the KV tiers: order, disks that do not answer, and the end."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from offload.kv_io import IoOperation, IoThreads, Lane
from offload.kv_request import MoveOutcome
from tests.kv_tiers import WAIT_S, Gate

DONE, FAILED = MoveOutcome.DONE, MoveOutcome.FAILED
Ends = queue.SimpleQueue[tuple[str, MoveOutcome]]


@pytest.fixture
def ends() -> Ends:
    return queue.SimpleQueue()


@pytest.fixture
def threads() -> Iterator[IoThreads]:
    made = IoThreads(timeout_s=0.05)
    yield made
    made.check()
    made.close()


@pytest.fixture
def patient() -> Iterator[IoThreads]:
    made = IoThreads(timeout_s=WAIT_S)
    yield made
    made.check()
    made.close()


def operation(
    ends: Ends, name: str, before: Callable[[], None] = lambda: None, urgency: tuple[float, ...] = ()
) -> IoOperation:
    def run(_claim: Callable[[], bool]) -> MoveOutcome:
        before()
        return DONE

    return IoOperation(run, lambda outcome: ends.put((name, outcome)), urgency)


def taken(ends: Ends, number: int) -> list[tuple[str, MoveOutcome]]:
    return [ends.get(timeout=WAIT_S) for _ in range(number)]


def test_the_urgent_go_first_and_of_equals_the_older(patient: IoThreads, ends: Ends) -> None:
    gate = Gate()
    patient.submit(Lane.READ, operation(ends, "first", gate, (9, 0)))
    assert gate.entered.wait(WAIT_S)
    for name, urgency in (("d", (2, 1)), ("b", (1, 3)), ("e", (2, 1)), ("a", (0, 9)), ("c", (1, 3))):
        patient.submit(Lane.READ, operation(ends, name, urgency=urgency))
    assert patient.num_queued(Lane.READ) == 5 and patient.num_queued(Lane.WRITE) == 0
    patient.submit(Lane.WRITE, operation(ends, "another lane"))
    assert taken(ends, 1) == [("another lane", DONE)]
    gate.open()
    assert [name for name, _ in taken(ends, 6)] == ["first", "a", "b", "c", "d", "e"]


@pytest.mark.parametrize("lane", [Lane.READ, Lane.WRITE])
def test_a_disk_that_does_not_answer_is_given_up_with_what_waits(threads: IoThreads, ends: Ends, lane: Lane) -> None:
    gate = Gate()
    threads.submit(lane, operation(ends, "hung", gate))
    assert gate.entered.wait(WAIT_S)
    threads.submit(lane, operation(ends, "behind"))
    assert set(taken(ends, 2)) == {("hung", FAILED), ("behind", FAILED)}
    assert threads.is_disk_hung
    for each in (Lane.READ, Lane.WRITE):
        threads.submit(each, operation(ends, each.name))
        assert ends.get_nowait() == (each.name, FAILED), "at once, on the caller's thread"
    threads.submit(Lane.SUM, operation(ends, "sum"))
    assert taken(ends, 1) == [("sum", DONE)], "sums need no disk"
    gate.open()
    recovered = threading.Event()
    while not recovered.is_set():  # the thread returns, and its lane works again
        threads.submit(lane, operation(ends, "again", recovered.set))
        assert taken(ends, 1)[0][0] == "again"
    assert not threads.is_disk_hung


def test_what_was_given_up_may_not_touch_what_is_others(threads: IoThreads, ends: Ends) -> None:
    gate = Gate()
    claims: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def run(claim: Callable[[], bool]) -> MoveOutcome:
        gate()
        claims.put(claim())
        return DONE

    threads.submit(Lane.READ, IoOperation(run, lambda outcome: ends.put(("hung", outcome))))
    assert taken(ends, 1) == [("hung", FAILED)]
    gate.open()
    assert claims.get(timeout=WAIT_S) is False
    threads.close()
    assert ends.empty(), "it ends once"


def test_what_was_claimed_is_not_given_up(threads: IoThreads, ends: Ends) -> None:
    gate, other = Gate(), Gate()

    def run(claim: Callable[[], bool]) -> MoveOutcome:
        assert claim()
        gate()
        return DONE

    threads.submit(Lane.READ, IoOperation(run, lambda outcome: ends.put(("claimed", outcome))))
    assert gate.entered.wait(WAIT_S)
    threads.submit(Lane.WRITE, operation(ends, "hung", other))
    assert taken(ends, 1) == [("hung", FAILED)], "by then the first has had longer"
    assert ends.empty()
    gate.open()
    assert taken(ends, 1) == [("claimed", DONE)]
    other.open()


def test_the_end_does_not_wait_for_a_disk_that_hangs(ends: Ends) -> None:
    threads = IoThreads(timeout_s=WAIT_S, close_s=0.02)
    gate = Gate()
    threads.submit(Lane.READ, operation(ends, "hung", gate))
    assert gate.entered.wait(WAIT_S)
    threads.submit(Lane.READ, operation(ends, "behind"))
    threads.close()
    threads.close()
    assert taken(ends, 2) == [("behind", FAILED), ("hung", FAILED)]
    threads.submit(Lane.WRITE, operation(ends, "late"))
    assert ends.get_nowait() == ("late", FAILED)
    gate.open()


def test_no_thread_is_left(ends: Ends) -> None:
    before = set(threading.enumerate())
    threads = IoThreads()
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert names == {*Lane, "headrace-kv-watch"}
    for lane in Lane:
        threads.submit(lane, operation(ends, lane.name))
    assert len(taken(ends, 3)) == 3
    threads.close()
    assert set(threading.enumerate()) <= before, "one of another test may have ended meanwhile"


def test_an_error_of_ours_fails_what_waits_and_is_told(ends: Ends) -> None:
    threads = IoThreads(timeout_s=WAIT_S)
    gate = Gate()

    def broken() -> None:
        gate()
        raise KeyError("an error of ours")

    threads.submit(Lane.WRITE, operation(ends, "broken", broken))
    assert gate.entered.wait(WAIT_S)
    threads.submit(Lane.WRITE, operation(ends, "behind"))
    gate.open()
    assert taken(ends, 2) == [("broken", FAILED), ("behind", FAILED)]
    threads.submit(Lane.WRITE, operation(ends, "after"))
    assert taken(ends, 1) == [("after", FAILED)]
    with pytest.raises(AssertionError, match="an error of ours"):
        threads.check()
    threads.close()


def test_many_operations_from_many_threads_end_once(patient: IoThreads, ends: Ends) -> None:
    def submit_all(start: int) -> None:
        for number in range(start, start + 100):
            patient.submit([*Lane][number % 3], operation(ends, str(number), urgency=(number % 7,)))

    submitters = [threading.Thread(target=functools.partial(submit_all, start)) for start in range(0, 400, 100)]
    for submitter in submitters:
        submitter.start()
    for submitter in submitters:
        submitter.join()
    assert sorted(int(name) for name, outcome in taken(ends, 400) if outcome is DONE) == list(range(400))
