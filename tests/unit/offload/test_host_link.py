"""The link of a CPU with its real thread. Order is forced by copies that wait for the test, never by sleeping."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from offload.host_link import HostLink, copy_slice
from offload.link import LinkError, TransferHandle
from offload.link_book import MIN_SLICE_BYTES
from offload.link_config import LinkConfig
from offload.transfer import Direction, LinkTransfer, Transfer, TransferClass
from tests.fake_cuda import FakeCuda

H2D, D2H = Direction
WEIGHTS, KV_LOAD, KV_STORE, BACKGROUND = TransferClass
SLICE = MIN_SLICE_BYTES
WAIT_S = 30.0
CONFIG = LinkConfig(1e9, 1e9)


class Copier:
    """Copies as the link does, but stops before each slice while `is_held`, and raises what it is told to."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.is_held = False
        self.num_started = 0
        self.error: BaseException | None = None

    def __call__(self, transfer: LinkTransfer, start: int, end: int) -> None:
        with self.changed:
            self.num_started += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: not self.is_held, WAIT_S)
            error, self.error = self.error, None
        if error is not None:
            raise error
        copy_slice(transfer, start, end)

    def hold(self) -> None:
        self.is_held = True

    def let_go(self) -> None:
        with self.changed:
            self.is_held = False
            self.changed.notify_all()

    def await_start(self, num_slices: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.num_started >= num_slices, WAIT_S)


@pytest.fixture
def copier() -> Copier:
    return Copier()


@pytest.fixture
def link(copier: Copier) -> Iterator[HostLink]:
    link = HostLink(CONFIG, copy=copier)
    yield link
    copier.let_go()
    link.check()
    link.close()
    link.check()


def transfer_of(
    num_bytes: int,
    transfer_class: TransferClass = WEIGHTS,
    direction: Direction = H2D,
    deadline_s: float = float("inf"),
    seed: int = 0,
) -> Transfer:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)
    return Transfer(direction, transfer_class, source, torch.zeros_like(source), deadline_s)


def test_bytes_arrive_from_many_threads_both_ways(link: HostLink) -> None:
    sizes = [0, 1, 4097, SLICE - 1, SLICE, 3 * SLICE + 5]
    transfers = [
        transfer_of(size, name, direction, seed=size)
        for size in sizes
        for name in TransferClass
        for direction in Direction
    ]
    handles: list[TransferHandle] = []

    def submit(mine: list[Transfer]) -> None:
        for transfer in mine:
            handles.append(link.submit(transfer))
            link.snapshot()
            link.check()

    threads = [threading.Thread(target=submit, args=(transfers[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    link.drain()
    assert len(handles) == len(transfers) and all(handle.is_done and handle.failed is None for handle in handles)
    assert all(torch.equal(transfer.target, transfer.source) for transfer in transfers)
    status = link.snapshot()
    assert all(
        status.of(direction).totals[name].num_bytes == sum(sizes) for direction in Direction for name in TransferClass
    )
    assert set(status.h2d.queued_bytes.values()) == {0}


def test_urgent_transfer_comes_after_the_slice_under_way(link: HostLink, copier: Copier) -> None:
    order: list[TransferHandle] = []
    copier.hold()
    large = link.submit(transfer_of(4 * SLICE, WEIGHTS, deadline_s=2.0), order.append)
    copier.await_start(1)
    anytime = link.submit(transfer_of(100, BACKGROUND), order.append)
    urgent = link.submit(transfer_of(100, KV_LOAD, deadline_s=1.0), order.append)
    assert link.snapshot().h2d.queued_bytes == {WEIGHTS: 3 * SLICE, KV_LOAD: 100, KV_STORE: 0, BACKGROUND: 100}
    copier.let_go()
    link.drain()
    anytime.wait(WAIT_S)
    assert order[:2] == [urgent, large]
    assert link.snapshot().h2d.totals[WEIGHTS].num_slices == 4


def test_callback_may_submit_and_finds_its_handle_done(link: HostLink) -> None:
    followed: list[TransferHandle] = []
    followed_up = threading.Event()

    def follow_up(handle: TransferHandle) -> None:
        assert handle.is_done and handle.finished_s is not None
        followed.append(link.submit(transfer_of(10), lambda _: followed_up.set()))

    link.submit(transfer_of(10), follow_up).wait(WAIT_S)
    assert followed_up.wait(WAIT_S)
    followed[0].order(None, WAIT_S)


@pytest.mark.parametrize("error", [RuntimeError("bad copy"), MemoryError("no page"), OSError("truncated file")])
def test_copy_that_raises_fails_its_transfer_and_the_link_lives_on(
    link: HostLink, copier: Copier, error: Exception
) -> None:
    copier.error = error
    failing = link.submit(transfer_of(3 * SLICE))
    with pytest.raises(LinkError, match=str(error)):
        failing.wait(WAIT_S)
    assert failing.failed is error and copier.num_started == 1, "the rest of it is not copied"
    after = link.submit(transfer_of(3 * SLICE))
    after.wait(WAIT_S)
    totals = link.snapshot().h2d.totals[WEIGHTS]
    assert (totals.num_transfers, totals.num_failed, totals.num_slices) == (2, 1, 3)


def test_death_of_the_thread_is_known_to_all_who_wait(copier: Copier) -> None:
    link = HostLink(CONFIG, copy=copier)
    copier.hold()
    copier.error = SystemExit("the thread is gone")
    told: list[TransferHandle] = []
    handles = [link.submit(transfer_of(2 * SLICE, direction=direction), told.append) for direction in (H2D, H2D, D2H)]
    caught: list[LinkError] = []

    def wait_for(wait: Callable[[], None]) -> None:
        with pytest.raises(LinkError, match="the thread is gone") as raised:
            wait()
        caught.append(raised.value)

    waits = [handle.wait for handle in handles] + [link.drain]
    threads = [threading.Thread(target=wait_for, args=(wait,)) for wait in waits]
    for thread in threads:
        thread.start()
    copier.await_start(1)
    copier.let_go()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(caught) == 4
    link.close()
    assert set(told) == set(handles) and all(isinstance(handle.failed, SystemExit) for handle in handles)
    with pytest.raises(LinkError, match=r"died: SystemExit.*start the engine anew"):
        link.submit(transfer_of(1))
    link.check()


def test_callback_that_raises_ends_the_link_and_nobody_hangs(copier: Copier) -> None:
    link = HostLink(CONFIG, copy=copier)

    def raise_error(_: TransferHandle) -> None:
        raise KeyError("whose block was this")

    copier.hold()
    link.submit(transfer_of(1), raise_error)
    behind = link.submit(transfer_of(SLICE))
    copier.let_go()
    with pytest.raises(LinkError, match="whose block was this"):
        behind.wait(WAIT_S)
    with pytest.raises(LinkError, match="whose block was this"):
        link.drain()
    link.close()


def test_close_ends_the_slice_under_way_and_fails_the_rest(link: HostLink, copier: Copier) -> None:
    copier.hold()
    under_way = link.submit(transfer_of(2 * SLICE))
    copier.await_start(1)
    queued = link.submit(transfer_of(1))
    closing = threading.Thread(target=link.close)
    closing.start()
    with pytest.raises(LinkError, match="closed before the copy was made"):
        queued.wait(WAIT_S)
    assert not under_way.is_done, "its slice is still being copied: source and target are not the owner's yet"
    copier.let_go()
    closing.join(WAIT_S)
    assert isinstance(under_way.failed, LinkError)
    with pytest.raises(LinkError, match="is closed"):
        link.submit(transfer_of(1))
    link.drain()
    link.close()


def test_wait_gives_up_when_told_to(link: HostLink, copier: Copier) -> None:
    copier.hold()
    handle = link.submit(transfer_of(77))
    with pytest.raises(LinkError, match=r"the h2d copy of 77 bytes of weights was not done within 0\.01 s"):
        handle.wait(0.01)
    copier.let_go()
    handle.wait(WAIT_S)


def test_capped_slice_takes_at_least_its_time_and_directions_are_apart() -> None:
    link = HostLink(CONFIG, {H2D: 50e6, D2H: 50e6})
    start_s = link.now_s()
    load = link.submit(transfer_of(4 * SLICE))
    store = link.submit(transfer_of(1000, KV_STORE, D2H))
    link.drain()
    assert load.finished_s is not None and store.finished_s is not None
    assert load.finished_s - start_s >= 4 * SLICE / 50e6
    assert store.finished_s < load.finished_s, "a store does not wait behind a load"
    link.set_cap(H2D, None)
    link.submit(transfer_of(4 * SLICE)).wait(WAIT_S)
    link.close()


def test_coupled_directions_each_take_longer() -> None:
    link = HostLink(LinkConfig(1e9, 1e9, coupling=0.5), {H2D: 100e6, D2H: 100e6})
    transfers = [transfer_of(4 * SLICE, direction=direction) for direction in Direction]
    start_s = link.now_s()
    handles = [link.submit(transfer) for transfer in transfers]
    link.drain()
    # The first slice may be alone; the seven others share the wire, or stand behind those that do.
    assert max(handle.finished_s or 0.0 for handle in handles) - start_s >= 6 * SLICE / 100e6
    link.close()


@pytest.mark.parametrize("bytes_per_s", [0.0, -1.0, float("inf")])
def test_cap_is_a_speed(link: HostLink, bytes_per_s: float) -> None:
    with pytest.raises(ValueError, match="the cap of h2d is"):
        link.set_cap(H2D, bytes_per_s)


def test_what_is_not_of_a_cpu_is_refused(link: HostLink) -> None:
    there = torch.zeros(4, dtype=torch.uint8, device="meta")
    with pytest.raises(ValueError, match="from cpu to meta over the link of a CPU"):
        link.submit(Transfer(H2D, WEIGHTS, torch.zeros(4).byte(), there, 0.0))
    event = FakeCuda().Event(blocking=True)
    with pytest.raises(ValueError, match="waits for no event"):
        link.submit(Transfer(H2D, WEIGHTS, torch.zeros(4).byte(), torch.zeros(4).byte(), 0.0, event))


def test_switch_interval_is_as_before_once_all_is_closed() -> None:
    before_s = sys.getswitchinterval()
    link = HostLink(CONFIG)
    assert sys.getswitchinterval() == pytest.approx(1e-4)
    link.close()
    assert sys.getswitchinterval() == before_s
