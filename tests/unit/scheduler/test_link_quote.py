"""When copies would be done, by hand: blocks of 1000 bytes."""

from __future__ import annotations

import pytest

from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot
from scheduler.link_quote import LinkQuote
from tests.kv_tier_builders import BLOCK_BYTES, make_link

LINK = make_link(10_000.0, 5000.0, queued_load_bytes=3000, queued_store_bytes=500, disk_read_bytes_per_s=2000.0)


def test_a_quote_is_what_is_queued_and_what_is_asked_at_the_measured_bandwidth() -> None:
    quote = LinkQuote(LINK, BLOCK_BYTES)
    assert quote.load_s(2) == pytest.approx((3000 + 2000) / 10_000)
    assert quote.store_s(2) == pytest.approx((500 + 2000) / 5000)
    assert quote.load_s(0) == pytest.approx(0.3)
    assert quote.read_s(3) == pytest.approx(1.5)


def test_bytes_of_others_than_kv_do_not_count() -> None:
    """Weights are in the share that they leave, and what nobody waits for lets KV pass."""
    other = {"queued_weights_bytes": 10**6, "queued_background_bytes": 10**6}
    link = LinkSnapshot(LinkDirection(1e4, queued_kv_store_bytes=7, **other), LinkDirection(1e4, **other))
    assert LinkQuote(link, BLOCK_BYTES).load_s(1) == pytest.approx(0.1)
    assert LinkQuote(link, BLOCK_BYTES).store_s(1) == pytest.approx(0.1)


def test_what_is_reserved_comes_before_what_is_asked_for_after_it_in_its_direction_alone() -> None:
    quote = LinkQuote(LINK, BLOCK_BYTES)
    quote.reserve_load(4)
    quote.reserve_load(1)
    assert quote.load_s(2) == pytest.approx((3000 + 5000 + 2000) / 10_000)
    assert quote.store_s(2) == pytest.approx(0.5)
    quote.reserve_store(3)
    assert quote.store_s(2) == pytest.approx((500 + 3000 + 2000) / 5000)
    assert quote.load_s(2) == pytest.approx(1.0)
    assert quote.read_s(2) == pytest.approx(1.0)


def test_the_slow_twentieth_of_the_link_is_for_plans_of_weights() -> None:
    link = LinkSnapshot(h2d=LinkDirection(10_000.0, 100.0))
    assert LinkQuote(link, BLOCK_BYTES).load_s(1) == pytest.approx(0.1)


def test_beside_streamed_weights_loads_get_their_share_and_stores_what_the_other_direction_leaves() -> None:
    link = make_link(10_000.0, 5000.0, queued_load_bytes=1000, kv_link_share=0.25, coupling=0.6, num_streamed_layers=3)
    quote = LinkQuote(link, BLOCK_BYTES)
    assert quote.load_s(4) == pytest.approx(5000 / 2500)
    assert quote.store_s(3) == pytest.approx(3000 / 3000)
    idle = make_link(10_000.0, 5000.0, queued_load_bytes=1000, kv_link_share=0.25, coupling=0.6)
    assert LinkQuote(idle, BLOCK_BYTES).load_s(4) == pytest.approx(0.5)
    assert LinkQuote(idle, BLOCK_BYTES).store_s(3) == pytest.approx(0.6)


def test_without_a_bandwidth_nothing_is_quoted() -> None:
    quote = LinkQuote(NO_LINK, BLOCK_BYTES)
    quote.reserve_load(100)
    assert (quote.load_s(9), quote.store_s(9), quote.read_s(9), quote.num_stored_in(9.0)) == (0.0, 0.0, 0.0, 1)


@pytest.mark.parametrize(
    ("duration_s", "streamed", "expected"),
    [(0.0, 0, 1), (0.39, 0, 1), (0.41, 0, 2), (2.0, 0, 10), (0.41, 1, 1), (2.0, 1, 6), (2.1, 1, 6)],
)
def test_how_many_blocks_leave_in_a_time(duration_s: float, streamed: int, expected: int) -> None:
    link = make_link(10_000.0, 5000.0, coupling=0.6, num_streamed_layers=streamed)
    assert LinkQuote(link, BLOCK_BYTES).num_stored_in(duration_s) == expected


@pytest.mark.parametrize(
    ("streamed", "coupling", "share", "expected"),
    [
        (0, 0.1, 0.0, True),  # there are no weights to slow down
        (1, 1.0, 0.0, True),  # the two directions do not disturb each other
        (1, 0.75, 0.25, True),  # they lose no more than KV's share
        (1, 0.74, 0.25, False),
        (1, 0.99, 0.0, False),
    ],
)
def test_stores_are_borne_where_weights_lose_no_more_than_the_share_of_kv(
    streamed: int, coupling: float, share: float, expected: bool
) -> None:
    link = make_link(kv_link_share=share, coupling=coupling, num_streamed_layers=streamed)
    assert LinkQuote(link, BLOCK_BYTES).bears_stores is expected
