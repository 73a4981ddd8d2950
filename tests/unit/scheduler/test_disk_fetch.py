"""Requests that wait for the disk: once a start, no longer than it is worth, and in their place afterwards."""

from __future__ import annotations

import pytest

from scheduler.disk_fetch import MAX_FETCHES, UNKNOWN_S, DiskFetch
from scheduler.kv_transfer import BlockOutcome, KVTransfer, Purpose, TransferKind
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.request import BlockHash, Request, RequestStatus
from scheduler.restore_price import RestorePrices
from scheduler.slo import SLOClasses
from scheduler.tier_directory import Presence
from scheduler.waiting_queue import WaitingQueue
from tests.kv_tier_builders import compute, end_of, make_latency, make_link, make_tiered, put_on_host
from tests.scheduler_builders import BLOCK_SIZE, make_request, respecify

NOW_S = 100.0
FILES = tuple(f"p:{index}".encode() for index in range(4))
FAST_DISK = make_link(disk_read_bytes_per_s=1e6)
"""1 ms to read a block, 1 ms to load it; to compute it takes 4."""


class Queue:
    """A queue before a cache whose disk holds the four blocks of prompt p."""

    def __init__(
        self,
        link: LinkSnapshot = FAST_DISK,
        *,
        model: LatencyModel | None = None,
        num_host_slots: int = 64,
        files: tuple[BlockHash, ...] = FILES,
    ) -> None:
        self.kv = make_tiered(64, num_host_slots, num_disk_blocks=64, disk_hashes=files)
        prices = RestorePrices(self.kv.tiers, model, BLOCK_SIZE, 64)
        self.kv.tiers.observe(link, NOW_S)
        prices.observe(link, None)
        self.queue = WaitingQueue(self.kv.num_blocks_for, SLOClasses().names, is_fair=False)
        self.fetch = DiskFetch(self.kv, prices, self.queue)
        self.waiting: list[Request] = []

    def add(self, name: str = "p", prompt: str = "p", num_tokens: int = 17) -> Request:
        request = make_request(name, num_tokens, 9, prompt=prompt, arrival_s=float(len(self.waiting)))
        self.queue.push(request)
        self.waiting.append(request)
        return request

    def begin(self, request: Request, now_s: float = NOW_S) -> tuple[KVTransfer, ...]:
        """What is read because of it; it is parked."""
        assert self.fetch.begin(request, now_s)
        return self.reads()

    def reads(self) -> tuple[KVTransfer, ...]:
        self.check()
        transfers = self.kv.tiers.take_outgoing()
        assert all(t.kind is TransferKind.READ and t.purpose is Purpose.WAITING for t in transfers)
        return transfers

    def end(self, transfer: KVTransfer, outcome: BlockOutcome = BlockOutcome.DONE) -> None:
        ended, _ = self.kv.tiers.end([end_of(transfer, outcome)])
        self.fetch.ended(ended)
        self.check()

    def check(self) -> None:
        self.queue.check(self.waiting)
        self.fetch.check()
        self.kv.check(())

    @property
    def parked(self) -> set[str]:
        return {request.request_id for request in self.queue.parked()}


def test_it_waits_without_a_turn_and_without_blocks_until_what_it_reads_has_ended() -> None:
    queue = Queue()
    first, second = queue.add(), queue.add("q", "q")
    (read,) = queue.begin(first)
    assert read.block_hashes == FILES and not read.device_blocks
    assert queue.parked == {"p"} and queue.queue.head_of("standard") is second
    assert not first.block_ids and queue.kv.pool.num_free_blocks == 64
    assert first.num_read_tokens == 16
    queue.end(read)
    assert not queue.parked and queue.queue.head_of("standard") is first, "its place is the old one"
    assert queue.kv.get_computed_blocks(first) == (None,) * 4


def test_a_request_reads_once_before_a_start_and_again_before_the_next() -> None:
    queue = Queue()
    request = queue.add()
    (read,) = queue.begin(request)
    queue.end(read, BlockOutcome.FAILED)
    queue.kv.tiers.observe(FAST_DISK, NOW_S + 60.0)
    assert queue.kv.tiers.directory.presence(FILES[0]) is Presence.DISK, "a second reading may be better"
    assert not queue.fetch.begin(request, NOW_S + 60.0) and not queue.parked
    queue.queue.remove(request)  # it starts, and loses what it computed
    request.forget_computed()
    queue.queue.push(request)
    assert queue.begin(request, NOW_S + 60.0)


@pytest.mark.parametrize("outcome", [BlockOutcome.CORRUPT, BlockOutcome.ABSENT, BlockOutcome.FAILED])
def test_however_a_read_ends_whoever_waits_has_a_turn(outcome: BlockOutcome) -> None:
    queue = Queue()
    request = queue.add()
    (read,) = queue.begin(request)
    queue.end(read, outcome)
    assert queue.queue.head_of("standard") is request
    assert queue.kv.get_computed_blocks(request) == ()
    assert queue.fetch.next_wakeup_s() is None


def test_two_requests_wait_for_the_same_reading() -> None:
    queue = Queue()
    first, second, longer = queue.add(), queue.add("p2"), queue.add("p3", num_tokens=12)
    (read,) = queue.begin(first)
    assert queue.begin(second) == () and queue.begin(longer) == ()
    assert queue.parked == {"p", "p2", "p3"}
    queue.end(read)
    assert not queue.parked and queue.queue.head_of("standard") is first


def test_long_prefixes_are_read_in_several_transfers_and_all_are_waited_for() -> None:
    files = tuple(f"p:{index}".encode() for index in range(40))
    queue = Queue(files=files)
    request = queue.add(num_tokens=161)
    reads = queue.begin(request)
    assert [len(read.block_hashes) for read in reads] == [16, 16, 8]
    assert sum((read.block_hashes for read in reads), ()) == files
    queue.end(reads[1])
    queue.end(reads[0], BlockOutcome.CORRUPT)
    assert queue.parked == {"p"}
    queue.end(reads[2])
    assert not queue.parked


def test_what_the_device_and_the_host_have_is_not_read() -> None:
    queue = Queue()
    put_on_host(queue.kv.tiers.directory, [FILES[2]])
    other = make_request("other", 4, 9, prompt="p")
    compute(queue.kv, other, 4)
    queue.kv.free(other)
    request = queue.add()
    (read,) = queue.begin(request)
    assert read.block_hashes == (FILES[1], FILES[3]) and request.num_read_tokens == 8


def test_nothing_behind_a_gap_is_read() -> None:
    queue = Queue(files=(FILES[0], FILES[2], FILES[3]))
    (read,) = queue.begin(queue.add())
    assert read.block_hashes == FILES[:1]


def test_the_last_known_token_is_computed_and_its_block_not_read() -> None:
    queue = Queue()
    (read,) = queue.begin(queue.add(num_tokens=16))
    assert read.block_hashes == FILES[:3]


def test_there_is_nothing_to_wait_for() -> None:
    queue = Queue()
    assert not queue.fetch.begin(queue.add("q", "q"), NOW_S), "the disk does not know it"
    blind = queue.add()
    respecify(blind, reads_prefix_cache=False)
    assert not queue.fetch.begin(blind, NOW_S)
    put_on_host(queue.kv.tiers.directory, FILES)
    assert not queue.fetch.begin(queue.add("p2"), NOW_S), "all of it is on the host"
    assert not queue.reads()


def test_a_host_without_room_is_not_waited_for() -> None:
    queue = Queue(num_host_slots=1)
    directory = queue.kv.tiers.directory
    assert directory.begin_store(b"busy", 1) is not None
    assert not queue.fetch.begin(queue.add(), NOW_S)
    directory.end_store(b"busy", BlockOutcome.DONE)
    (read,) = queue.begin(queue.waiting[0])
    assert read.block_hashes == FILES[:1], "as far as there is room"


@pytest.mark.parametrize(("disk", "is_worth"), [(1e6, True), (0.35e6, True), (0.32e6, False), (0.0, True)])
def test_reading_and_loading_is_to_take_less_than_computing(disk: float, is_worth: bool) -> None:
    """Of 4 blocks: computing takes 16 ms, loading 4, so reading may take 12. An unknown disk is tried."""
    queue = Queue(make_link(disk_read_bytes_per_s=disk), model=make_latency())
    assert queue.fetch.begin(queue.add(), NOW_S) is is_worth
    assert len(queue.reads()) == is_worth


@pytest.mark.parametrize(
    ("disk", "model", "patience_s"),
    [
        (1e6, make_latency(), 0.016),  # as long as computing would take: twice 4 ms of reading are less
        (0.4e6, make_latency(), 0.020),  # twice the 10 ms that reading is expected to take
        (0.0, make_latency(), 0.016),
        (0.0, None, UNKNOWN_S),
        (1e3, None, 8.0),
    ],
)
def test_when_it_gives_up(disk: float, model: LatencyModel | None, patience_s: float) -> None:
    queue = Queue(make_link(disk_read_bytes_per_s=disk), model=model)
    request = queue.add()
    (read,) = queue.begin(request)
    give_up_s = queue.fetch.next_wakeup_s()
    assert give_up_s == pytest.approx(NOW_S + patience_s)
    assert give_up_s is not None
    queue.fetch.run(give_up_s - 1e-6)
    assert queue.parked == {"p"}
    queue.fetch.run(give_up_s)
    assert queue.queue.head_of("standard") is request and queue.fetch.next_wakeup_s() is None
    assert not queue.fetch.begin(request, give_up_s), "it takes its turn without"
    queue.end(read)  # late, and of use to the next one
    assert queue.kv.get_computed_blocks(request) == (None,) * 4


def test_the_first_to_lose_patience_says_when_to_wake_up() -> None:
    queue = Queue(make_link(disk_read_bytes_per_s=0.0))
    assert queue.fetch.next_wakeup_s() is None
    queue.begin(queue.add(), NOW_S + 5.0)
    queue.begin(queue.add("p2"), NOW_S + 2.0)
    assert queue.fetch.next_wakeup_s() == NOW_S + 2.0 + UNKNOWN_S
    queue.fetch.run(NOW_S + 2.0 + UNKNOWN_S)
    assert queue.parked == {"p"} and queue.fetch.next_wakeup_s() == NOW_S + 5.0 + UNKNOWN_S


def test_those_who_arrive_are_fetched_for_before_their_turn_but_not_all() -> None:
    files = tuple(f"r{index}:0".encode() for index in range(MAX_FETCHES + 2))
    queue = Queue(files=files)
    for index in range(MAX_FETCHES + 2):
        request = queue.add(f"r{index}", f"r{index}", num_tokens=5)
        queue.fetch.arrived(request)
    assert not queue.parked, "not before the next step"
    queue.fetch.run(NOW_S)
    reads = queue.reads()
    assert [read.block_hashes for read in reads] == [(h,) for h in files[:MAX_FETCHES]]
    queue.end(reads[0])
    queue.fetch.run(NOW_S)
    assert not queue.reads(), "one arrives once"
    assert queue.begin(queue.waiting[-1]), "at the head of its class it is fetched for"


def test_who_left_before_the_step_is_not_fetched_for() -> None:
    queue = Queue()
    request = queue.add()
    queue.fetch.arrived(request)
    queue.queue.remove(request)
    queue.waiting.remove(request)
    queue.fetch.forget(request)
    request.move(RequestStatus.FINISHED)
    queue.fetch.run(NOW_S)
    assert not queue.reads() and queue.fetch.next_wakeup_s() is None


def test_one_that_leaves_while_it_waits_leaves_the_reading_to_the_other() -> None:
    queue = Queue()
    first, second = queue.add(), queue.add("p2")
    (read,) = queue.begin(first)
    queue.begin(second)
    queue.queue.remove(first)
    queue.waiting.remove(first)
    queue.fetch.forget(first)
    assert queue.parked == {"p2"}
    queue.end(read)
    assert queue.queue.head_of("standard") is second
    queue.fetch.forget(second)  # once more: nothing


def test_what_is_read_is_kept_with_the_priority_of_who_waits_for_it() -> None:
    queue = Queue(num_host_slots=5)
    request = queue.add()
    respecify(request, retention=2)
    (read,) = queue.begin(request)
    queue.end(read)
    directory = queue.kv.tiers.directory
    put_on_host(directory, [b"one"])
    put_on_host(directory, [b"two"])
    assert [directory.is_known(h) for h in (*FILES, b"one")] == [True] * 4 + [False]


def test_a_book_that_lies_is_caught() -> None:
    queue = Queue()
    request = queue.add()
    queue.begin(request)
    queue.queue.unpark("disk/p")
    with pytest.raises(AssertionError, match="has a turn"):
        queue.fetch.check()
