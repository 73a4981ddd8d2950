"""What is still to be done of promises, and which were kept."""

from __future__ import annotations

import pytest

from scheduler.block_pool import BlockPool
from scheduler.config import SchedulerConfig
from scheduler.demand_curve import Work, WorkCost
from scheduler.policy import Policy, new_request
from scheduler.promise_book import PromiseBook
from scheduler.request import FinishReason, Request
from scheduler.slo import SLOClasses
from tests.scheduler_builders import BLOCK_SIZE, make_spec

CLASSES = SLOClasses()


def make(name: str = "a", num_prompt_tokens: int = 40, *, slo_class: str = "interactive", **options: object) -> Request:
    return new_request(
        make_spec(name, num_prompt_tokens, 20, slo_class=slo_class, **options),  # type: ignore[arg-type]
        0,
        Policy("deadline", CLASSES),
    )


def make_book(policy: str = "deadline") -> PromiseBook:
    config = SchedulerConfig(block_size=BLOCK_SIZE, scheduler_policy=policy)  # type: ignore[arg-type]
    return PromiseBook(config, CLASSES, BlockPool(32))


def emit(book: PromiseBook, request: Request, now_s: float) -> None:
    request.num_pending_samples += 1
    request.commit(0, samples=True, now_s=now_s)
    book.emitted(request, now_s)


def test_a_request_counts_with_what_is_left_of_its_prompt_until_its_first_token() -> None:
    book, request = make_book(), make()
    book.added(request)
    assert book.waiting == {"a": request} and book.curve.total() == Work.between(0, 40)
    request.num_computed_tokens = 8  # found in the prefix cache
    book.started(request, 0.1)
    assert not book.waiting and book.curve.total() == Work.between(8, 40)
    request.num_computed_tokens = 30
    book.computed(request)
    assert book.curve.total() == Work.between(30, 40)
    request.num_computed_tokens = 40
    emit(book, request, 0.2)
    assert not len(book.curve)


def test_one_that_lost_its_blocks_counts_again_with_what_it_computes_again() -> None:
    book, request = make_book(), make()
    book.added(request)
    book.started(request, 0.1)
    request.num_computed_tokens = 40
    for now_s in (0.2, 0.22, 0.24):
        emit(book, request, now_s)
    request.forget_computed()
    request.num_preemptions = 1
    book.added(request)
    assert "a" in book.waiting and book.curve.total() == Work.between(0, 43)
    late = book.curve.lateness((9, 9.0, 0.0, "z", 0), 9.0, Work(), _unit_cost(), _unit_cost(), 0.2, 0.0)
    assert late.finish_s == pytest.approx(43.2), "behind it in the order of service"
    request.num_computed_tokens = 16
    book.started(request, 0.3)
    assert book.curve.total() == Work.between(16, 43)
    emit(book, request, 0.35)
    assert not len(book.curve) and not book.waiting


def _unit_cost() -> WorkCost:
    return WorkCost(1.0, 0.0)


def test_a_choice_with_a_leader_computes_the_end_of_the_prompt() -> None:
    book = make_book()
    book.added(make("a"))
    book.added(make("b", leader_id="a"))
    assert book.curve.total() == Work.between(0, 40) + Work.between(39, 40)


@pytest.mark.parametrize(("policy", "counts"), [("deadline", False), ("priority", False), ("edf", True)])
def test_classes_without_promises_count_where_they_may_go_first(policy: str, counts: bool) -> None:
    book = make_book(policy)
    book.added(make("s", slo_class="standard"))
    assert (len(book.curve) == 1) == counts
    assert not book.waiting


def test_hits_are_counted_up_to_the_first_miss_and_never_the_last_token() -> None:
    pool = BlockPool(32)
    book = PromiseBook(SchedulerConfig(block_size=BLOCK_SIZE), CLASSES, pool)
    spec = make_spec("a", 12, 5)
    for index in (0, 2):
        pool.register(pool.allocate(1)[0], spec.block_hashes[index])
    assert book.num_cached_tokens(spec, spec.block_hashes) == 4
    pool.register(pool.allocate(1)[0], spec.block_hashes[1])
    assert book.num_cached_tokens(spec, spec.block_hashes) == 8, "the last token is computed"
    unread = make_spec("b", 12, 5, prompt="a", reads_prefix_cache=False)
    assert book.num_cached_tokens(unread, unread.block_hashes) == 0


def _run(first_s: float, gaps_s: list[float]) -> tuple[PromiseBook, Request]:
    book, request = make_book(), make(slo_class="interactive")
    book.added(request)
    book.started(request, 0.1)
    now_s = first_s
    emit(book, request, now_s)
    for gap_s in gaps_s:
        now_s += gap_s
        emit(book, request, now_s)
    return book, request


@pytest.mark.parametrize(
    ("first_s", "gaps_s", "is_kept"),
    [
        (1.008, [0.05] * 5, True),  # 1 s and 0.2 s per 1000 tokens; 50 ms a token
        (1.009, [0.01] * 5, False),
        (0.5, [0.01, 0.09, 0.05], True),
        (0.5, [0.05, 0.05, 0.051], False),
        (0.5, [0.01] * 10 + [0.46], False),
        (0.5, [0.0] * 10 + [0.5], True),
        (0.5, [0.0] * 11 + [0.501], False),  # the mean is kept, the stall of 500 ms is not
    ],
)
def test_a_promise_is_the_first_token_the_mean_gap_and_the_longest(
    first_s: float, gaps_s: list[float], is_kept: bool
) -> None:
    book, request = _run(first_s, gaps_s)
    request.finish_reason = FinishReason.STOP
    book.left(request)
    assert (book.margin.num_kept, book.margin.num_broken) == (int(is_kept), int(not is_kept))


@pytest.mark.parametrize(
    ("now_s", "reason", "counts"),
    [
        (0.5, FinishReason.ABORT, (0, 0)),  # left in time: neither kept nor broken
        (1.5, FinishReason.ABORT, (0, 1)),
        (1.5, FinishReason.ERROR, (0, 0)),
    ],
)
def test_who_leaves_counts_only_once_the_promise_is_broken(
    now_s: float, reason: FinishReason, counts: tuple[int, int]
) -> None:
    book, request, other = make_book(), make("a"), make("b")
    book.added(request)
    book.added(other)
    book.started(other, now_s)
    request.finish_reason = reason
    book.left(request)
    assert (book.margin.num_kept, book.margin.num_broken) == counts
    assert len(book.curve) == 1 and set(book.waiting) == set()


def test_a_first_token_that_was_put_off_is_late_though_its_request_started_again() -> None:
    book, request = make_book(), make()
    book.added(request)
    book.started(request, 0.1)  # due at 1.008 s
    request.deadlines.rebase(2.0)
    request.forget_computed()
    request.num_preemptions = 1
    book.added(request)
    book.started(request, 1.5)
    emit(book, request, 1.9)
    request.finish_reason = FinishReason.STOP
    book.left(request)
    assert (book.margin.num_kept, book.margin.num_broken) == (0, 1)


def test_lengths_are_learned_from_answers_that_ended() -> None:
    book = make_book()
    for index in range(40):
        request = make(f"r{index}", slo_class="batch")
        book.added(request)
        emit(book, request, 1.0)
        request.finish_reason = FinishReason.STOP if index % 2 else FinishReason.ABORT
        book.left(request)
    assert book.lengths.remaining("batch", 0, 500) == 1
    assert book.lengths.remaining("interactive", 0, 500) == 500
