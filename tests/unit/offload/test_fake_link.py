"""The books of a link in virtual time: what arrives when, what is poison until then, what a fault leaves behind."""

from __future__ import annotations

import pytest
import torch

from offload.link import LinkError, TransferHandle
from offload.link_book import MIN_SLICE_BYTES
from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer, TransferClass
from tests.fake_link import POISON, FakeLink

H2D, D2H = Direction
WEIGHTS, KV_LOAD, KV_STORE, BACKGROUND = TransferClass
SLICE = MIN_SLICE_BYTES
SPEED = SLICE * 100.0  # a slice takes 10 ms
SLICE_S = 0.01


def transfer_of(
    num_slices: float,
    transfer_class: TransferClass = WEIGHTS,
    direction: Direction = H2D,
    deadline_s: float = float("inf"),
) -> Transfer:
    num_bytes = int(num_slices * SLICE)
    source = torch.full((num_bytes,), 7, dtype=torch.uint8)
    return Transfer(direction, transfer_class, source, torch.zeros_like(source), deadline_s)


def is_poison(tensor: torch.Tensor) -> bool:
    return bool((tensor == POISON).all())


def test_slices_arrive_one_by_one_and_what_has_not_is_poison() -> None:
    link = FakeLink(SPEED)
    transfer = transfer_of(3)
    handle = link.submit(transfer)
    assert is_poison(transfer.target)
    link.advance(1.5 * SLICE_S)
    assert (transfer.target[:SLICE] == 7).all() and is_poison(transfer.target[SLICE:])
    assert not handle.is_done and handle.finished_s is None
    link.advance(1.5 * SLICE_S)
    assert torch.equal(transfer.target, transfer.source)
    assert handle.is_done and handle.finished_s == pytest.approx(3 * SLICE_S)


def test_source_is_poison_once_its_lease_is_over_if_asked() -> None:
    link = FakeLink(SPEED, poisoned_sources=[KV_STORE])
    store, weights = transfer_of(2, KV_STORE, D2H), transfer_of(2, WEIGHTS)
    link.submit(store)
    link.submit(weights)
    link.advance(SLICE_S)
    assert (store.source == 7).all()
    link.advance_to_idle()
    assert is_poison(store.source) and (store.target == 7).all()
    assert (weights.source == 7).all(), "the host's copy of weights is for good"


def test_waiting_takes_the_time_of_the_copy() -> None:
    link = FakeLink(SPEED)
    handle = link.submit(transfer_of(5))
    with pytest.raises(LinkError, match=r"not done within 0\.02 s"):
        handle.wait(timeout_s=0.02)
    assert link.now_s() == pytest.approx(0.02)
    handle.wait()
    assert link.now_s() == pytest.approx(0.05)
    link.submit(transfer_of(1))
    link.drain()
    assert link.now_s() == pytest.approx(0.06)


def test_directions_are_apart_but_for_the_coupling() -> None:
    link = FakeLink(SPEED, 2 * SPEED, coupling=0.5)
    store = link.submit(transfer_of(2, KV_STORE, D2H))  # alone on its first slice: 5 ms, then 10 ms
    load = link.submit(transfer_of(3, KV_LOAD, H2D))  # 20 ms for the first slice, beside the store
    link.advance_to_idle()
    assert store.finished_s == pytest.approx(0.015)
    assert load.finished_s == pytest.approx(0.04)
    status = link.snapshot()
    assert status.coupling == 0.5 and status.h2d.totals[KV_LOAD].num_late_slices == 0, "what coupling costs is known"


def test_loads_are_not_starved_by_stores_that_are_known() -> None:
    """Host-to-device bandwidth under a stream of stores keeps the coupled share, and its estimate the whole."""
    link = FakeLink(SPEED, coupling=0.4)
    stores = [link.submit(transfer_of(5, KV_STORE, D2H)) for _ in range(8)]
    loads = [link.submit(transfer_of(1, KV_LOAD, H2D)) for _ in range(16)]
    link.advance_to_idle()
    assert loads[-1].finished_s == pytest.approx(16 * SLICE_S / 0.4, rel=0.05)
    status = link.snapshot()
    assert status.h2d.p50_bytes_per_s == pytest.approx(SPEED) and status.h2d.num_drops == 0
    assert all(store.is_done for store in stores)


def test_coupling_that_nobody_knew_of_derates_at_once() -> None:
    link = FakeLink(SPEED, coupling=0.4, config=LinkConfig(SPEED, SPEED, coupling=1.0))
    for _ in range(20):
        link.submit(transfer_of(1, KV_STORE, D2H))
        link.submit(transfer_of(1, KV_LOAD, H2D))
    link.advance_to_idle()
    assert link.snapshot().h2d.p50_bytes_per_s == pytest.approx(0.4 * SPEED, rel=0.1)


@pytest.mark.parametrize("factor", [2.0, 10.0])
def test_slower_link_than_recorded_is_known_after_a_few_slices(factor: float) -> None:
    link = FakeLink(SPEED)
    link.submit(transfer_of(80)).wait()
    assert not link.snapshot().h2d.is_derated
    link.slow_down(factor)
    handle = link.submit(transfer_of(9, deadline_s=link.now_s() + 9.5 * SLICE_S))
    handle.wait()
    status = link.snapshot().h2d
    assert status.is_derated and status.num_drops == 1
    assert status.p5_bytes_per_s == status.p50_bytes_per_s == pytest.approx(SPEED / factor)
    totals = status.totals[WEIGHTS]
    assert (totals.num_missed, totals.num_late_slices) == (1, 8), "the ninth came as expected by then"


def test_plans_can_tell_the_usual_from_the_slowest_twentieth() -> None:
    speed = SLICE / 0.026  # two slices are a sample
    link = FakeLink(speed)
    for index in range(20):
        link.slow_down(1.2 if index % 10 == 9 else 1.0)
        link.submit(transfer_of(2)).wait()
    status = link.snapshot().h2d
    assert (status.p50_bytes_per_s, status.p5_bytes_per_s) == (pytest.approx(speed), pytest.approx(speed / 1.2))
    assert status.num_drops == 0


def test_contention_that_begins_within_a_transfer_and_ends_does_not_flap() -> None:
    link = FakeLink(SPEED)
    link.submit(transfer_of(40)).wait()
    estimates = []
    for _ in range(5):
        for factor in (3.0, 1.0):
            handle = link.submit(transfer_of(20))
            link.advance(5 * SLICE_S)
            link.slow_down(factor)
            handle.wait()
            link.check()
            estimates.append(link.snapshot().h2d.p50_bytes_per_s)
    assert estimates == pytest.approx([SPEED / 3] * 10), "down within the first transfer, and no way up while it varies"
    assert link.snapshot().h2d.num_drops == 1
    for _ in range(21):
        link.submit(transfer_of(10)).wait()
    assert link.snapshot().h2d.p50_bytes_per_s == pytest.approx(SPEED), "2 s of full speed are a recovery"


def test_failed_copy_is_known_to_whoever_asks_and_the_next_goes_on() -> None:
    link = FakeLink(SPEED)
    seen: list[TransferHandle] = []
    failing, next_one = link.submit(transfer_of(3), seen.append), link.submit(transfer_of(1), seen.append)
    error = OSError("cable out")
    link.advance(1.5 * SLICE_S)
    link.fail(failing, error)
    with pytest.raises(LinkError, match="the h2d copy of 1,572,864 bytes of weights failed: cable out") as caught:
        failing.wait()
    assert caught.value.__cause__ is error is failing.failed and failing.is_done
    next_one.wait()
    assert next_one.failed is None and seen == [failing, next_one]
    totals = link.snapshot().h2d.totals[WEIGHTS]
    assert (totals.num_transfers, totals.num_failed, totals.num_bytes) == (2, 1, 2 * SLICE)
    link.check()


def test_held_completion_comes_late_and_out_of_order() -> None:
    link = FakeLink(SPEED)
    first, second = link.submit(transfer_of(1)), link.submit(transfer_of(1))
    link.hold(first)
    link.advance_to_idle()
    link.check()
    assert not first.is_done and second.is_done and torch.equal(first.transfer.target, first.transfer.source)
    with pytest.raises(LinkError, match="wait would block for ever"):
        first.wait()
    with pytest.raises(LinkError, match="drain would block for ever"):
        link.drain()
    link.release(first)
    assert link.completed == [second, first]
    link.drain()


def test_duplicate_completion_ends_nothing_twice() -> None:
    link = FakeLink(SPEED)
    seen: list[float | None] = []
    handle = link.submit(transfer_of(1), lambda ended: seen.append(ended.finished_s))
    link.duplicate(handle)
    link.advance_to_idle()
    assert seen == [pytest.approx(SLICE_S)] * 2 and link.completed == [handle, handle]
    assert link.snapshot().h2d.totals[WEIGHTS].num_transfers == 1
    link.check()


def test_dead_link_says_so_to_everybody() -> None:
    link = FakeLink(SPEED)
    under_way, queued = link.submit(transfer_of(2)), link.submit(transfer_of(1))
    link.advance(1.5 * SLICE_S)
    link.die(SystemExit("killed"))
    for handle in (under_way, queued):
        with pytest.raises(LinkError, match="killed"):
            handle.wait()
    with pytest.raises(LinkError, match="the copier of the link died"):
        link.submit(transfer_of(1))
    with pytest.raises(LinkError, match="the copier of the link died"):
        link.drain()
    link.check()
    link.close()


def test_closing_ends_the_slice_under_way_and_fails_the_rest() -> None:
    link = FakeLink(SPEED)
    under_way, queued = link.submit(transfer_of(2)), link.submit(transfer_of(1))
    link.close()
    assert link.now_s() == pytest.approx(SLICE_S)
    for handle in (under_way, queued):
        assert isinstance(handle.failed, LinkError)
    with pytest.raises(LinkError, match="is closed"):
        link.submit(transfer_of(1))
    link.check()
    link.close()


def test_share_of_kv_follows_its_demand() -> None:
    link = FakeLink(SPEED)
    assert link.snapshot().kv_link_share == 0.15
    for _ in range(50):
        link.submit(transfer_of(3, KV_LOAD))
        link.advance(10 * SLICE_S)
    assert 0.26 < link.snapshot().kv_link_share < 0.3, "of the last seconds, which were 30 %"
    for _ in range(20):
        link.submit(transfer_of(9, KV_LOAD))
        link.advance(10 * SLICE_S)
    assert link.snapshot().kv_link_share == 0.5, "weights of a step hold up every request: half is theirs"
    link.advance(100.0)
    assert link.snapshot().kv_link_share == 0.15


def test_transfer_without_bytes_is_done_at_once() -> None:
    link = FakeLink(SPEED)
    seen: list[TransferHandle] = []
    handle = link.submit(transfer_of(0), seen.append)
    assert handle.is_done and seen == [handle]
    handle.wait()
    link.drain()
