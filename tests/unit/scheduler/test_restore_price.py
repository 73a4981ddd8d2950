"""Loading against computing again, by hand: blocks of 4 tokens; 1 ms to load a block, 1 ms to compute a token."""

from __future__ import annotations

import pytest

from scheduler.kv_cache_manager import KVCacheManager
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.restore_price import RestorePrices
from tests.kv_tier_builders import make_latency, make_link, make_tiered
from tests.scheduler_builders import BLOCK_SIZE

CHUNK = 64


class Priced:
    """Prices at a link's and a pace's state."""

    def __init__(self, link: LinkSnapshot, *, pace: float | None = None, model: LatencyModel | None = None) -> None:
        self.kv: KVCacheManager = make_tiered()
        self.prices = RestorePrices(self.kv.tiers, model, BLOCK_SIZE, CHUNK)
        self.observe(link, pace)

    def observe(self, link: LinkSnapshot, pace: float | None = None) -> None:
        self.kv.tiers.observe(link, 0.0)
        self.prices.observe(link, pace)


def test_computing_takes_as_long_as_alone_or_as_the_load_leaves_whichever_is_more() -> None:
    priced = Priced(make_link(), model=make_latency())
    assert priced.prices.recompute_s(8, 20) == pytest.approx(0.012)
    priced.observe(make_link(), 0.0005)
    assert priced.prices.recompute_s(8, 20) == pytest.approx(0.012)
    priced.observe(make_link(), 0.003)
    assert priced.prices.recompute_s(8, 20) == pytest.approx(0.036)
    assert priced.prices.recompute_s(20, 20) == 0.0


def test_tokens_behind_a_long_prefix_take_longer() -> None:
    priced = Priced(make_link(), model=make_latency(s_per_prefill_pair=1e-5))
    first, later = (priced.prices.recompute_s(kept, kept + 10) for kept in (0, 100))
    assert first is not None and later is not None
    assert later - first == pytest.approx(1e-5 * 100 * 10), "10 tokens, each with 100 keys more"


def test_what_streaming_adds_to_a_chunk_is_part_of_computing() -> None:
    """A chunk of 64 tokens takes 64 ms; with 1 MB a step through 10 MB/s, 100 ms."""
    priced = Priced(make_link(), model=make_latency(streamed_layer_bytes=1_000_000))
    assert priced.prices.recompute_s(0, 64) == pytest.approx(0.064)
    priced.observe(make_link(1e7, num_streamed_layers=1, kv_link_share=0.5))
    assert priced.prices.recompute_s(0, 64) == pytest.approx(0.1)


QUEUED = 9_500
"""9.5 ms: of n blocks, loading takes 9.5 + n ms and computing 4 n ms. From 4 blocks on loading wins."""


@pytest.mark.parametrize(("num_loads", "num_left"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 4), (5, 5)])
def test_a_prefix_is_trimmed_below_the_block_where_loading_begins_to_win(num_loads: int, num_left: int) -> None:
    priced = Priced(make_link(queued_load_bytes=QUEUED), model=make_latency())
    device = (7, 3)
    blocks = (*device, *[None] * num_loads)
    assert priced.prices.worth_loading(blocks) == (*device, *[None] * num_left)


def test_loads_of_the_same_step_move_the_crossover() -> None:
    """Two blocks more ahead of it: 11.5 + n against 4 n, even at n = 23/6."""
    priced = Priced(make_link(queued_load_bytes=QUEUED), model=make_latency())
    priced.kv.tiers.quote.reserve_load(2)
    assert priced.prices.worth_loading((None,) * 4) == (None,) * 4
    priced.kv.tiers.quote.reserve_load(1)
    assert priced.prices.worth_loading((None,) * 4) == ()
    assert priced.prices.worth_loading((None,) * 5) == (None,) * 5


def test_blocks_on_the_device_behind_a_missing_one_are_won_by_its_load() -> None:
    priced = Priced(make_link(queued_load_bytes=6_500), model=make_latency())
    assert priced.prices.worth_loading((7, None)) == (7,), "7.5 ms against 4"
    assert priced.prices.worth_loading((7, None, 5)) == (7, None, 5), "7.5 ms against 8"
    assert priced.prices.worth_loading((7, None, 5, None)) == (7, None, 5, None), "8.5 ms against 12"
    assert priced.prices.worth_loading((7, 5, None)) == (7, 5), "what lies before it is there anyway"


def test_a_busy_device_makes_loading_worth_more() -> None:
    priced = Priced(make_link(queued_load_bytes=QUEUED), model=make_latency())
    assert priced.prices.worth_loading((None,)) == ()
    priced.observe(make_link(queued_load_bytes=QUEUED), 0.003)
    assert priced.prices.worth_loading((None,)) == (None,), "10.5 ms against 12"


def test_without_a_model_what_can_be_loaded_is_loaded() -> None:
    priced = Priced(make_link(queued_load_bytes=10**12), pace=0.1)
    assert priced.prices.recompute_s(0, 8) is None
    assert priced.prices.worth_loading((None, 1)) == (None, 1)
    assert priced.prices.worth_reading(0, 1) and priced.prices.worth_storing(0, 1)


def test_reading_pays_for_the_disk_and_for_the_load_behind_it() -> None:
    """Of 3 blocks: at 400 kB/s 7.5 ms, the load 3 ms more, computing 12 ms."""
    priced = Priced(make_link(disk_read_bytes_per_s=400_000.0), model=make_latency())
    assert priced.prices.worth_reading(0, 3)
    priced.observe(make_link(disk_read_bytes_per_s=300_000.0))
    assert not priced.prices.worth_reading(0, 3), "13 ms against 12"
    priced.observe(make_link(disk_read_bytes_per_s=400_000.0, queued_load_bytes=1_600))
    assert not priced.prices.worth_reading(0, 3), "12.1 ms against 12"


def test_storing_pays_for_both_ways() -> None:
    """Of 2 blocks: 2 ms to load, computing 8 ms; so leaving may take 6."""
    for queued, expected in ((3_900, True), (4_100, False)):
        priced = Priced(make_link(queued_store_bytes=queued), model=make_latency())
        assert priced.prices.worth_storing(5, 7) is expected


def test_a_restart_loads_what_is_saved_and_computes_the_rest_or_computes_all() -> None:
    priced = Priced(make_link(), model=make_latency())
    assert priced.prices.restore_s(1, 3, 14) == pytest.approx(0.002 + 0.002)
    assert priced.prices.restore_s(1, 1, 14) == pytest.approx(0.010)
    assert priced.prices.restore_s(0, 3, 14) == pytest.approx(0.003 + 0.002)
    priced.observe(make_link(queued_load_bytes=7_000))
    assert priced.prices.restore_s(1, 3, 14) == pytest.approx(0.010), "9 + 2 ms are more than 10"


def test_the_last_known_token_is_always_computed() -> None:
    priced = Priced(make_link(), model=make_latency())
    assert priced.prices.restore_s(4, 4, 16) == pytest.approx(0.001)
    assert priced.prices.restore_s(0, 4, 16) == pytest.approx(0.004 + 0.001)


def test_a_victim_costs_nothing_where_nobody_knows() -> None:
    assert Priced(make_link()).prices.restore_s(0, 0, 100) == 0.0
