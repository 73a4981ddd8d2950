"""Both ends of a copy belong to it until its result is taken in, whatever becomes of the request it was for."""

from __future__ import annotations

import pytest

from scheduler.kv_transfer import BlockOutcome, Purpose
from scheduler.link import NO_LINK, LinkSnapshot
from tests.tier_states import (
    LOAD,
    OTHER,
    PROMPT,
    READ,
    SLOW,
    STORE,
    add,
    flying,
    freeze,
    is_computed_upon_its_load,
    is_loaded_and_stored,
    is_stored,
    make_rig,
    never_scheduled,
    serve,
    waits_for_its_load,
    waits_for_the_disk,
    yielded_and_is_stored,
)


@pytest.fixture(autouse=True)
def whole_answers(monkeypatch):
    """No stop token: every answer is as long as asked for."""
    monkeypatch.setattr("tests.tier_rig.STOP_TOKEN", -1)


STATES = [
    never_scheduled,
    waits_for_the_disk,
    waits_for_its_load,
    is_computed_upon_its_load,
    is_stored,
    is_loaded_and_stored,
    yielded_and_is_stored,
]


@pytest.mark.parametrize("is_over", [False, True], ids=["under way", "over and not told"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_an_abort_gives_back_all_but_what_copies_hold_and_that_with_their_results(state, is_over):
    rig = state()
    if is_over:
        rig.land()
    rig.abort(sorted(rig.live))
    while rig.steps:
        rig.update()
    rig.check()
    leases = rig.content.leases()
    assert rig.scheduler.stats().num_blocks_used == len(leases)
    rig.land()
    rig.step()
    assert rig.scheduler.stats().num_blocks_used == len(rig.content.leases())
    rig.calm()
    serve(rig, PROMPT)
    serve(rig, OTHER)
    assert not rig.live and rig.scheduler.stats().num_blocks_used == 0


def test_what_a_load_holds_is_nobody_elses():
    """Aborted, its blocks are still being filled: a request that needs the whole pool waits for them."""
    rig = waits_for_its_load()
    held = set(flying(rig, LOAD))
    rig.abort(sorted(rig.live))
    rig.link = NO_LINK
    name = add(rig, [3] * 20, 4)  # 12 blocks
    for _ in range(5):
        output = rig.schedule()
        assert not output.scheduled
        rig.update()
    assert set(flying(rig, LOAD)) == held
    rig.land()
    rig.calm()
    rig.drain(rig.most_steps())
    assert rig.outcomes[name] == "length"


def test_two_requests_of_one_prefix_share_a_load_though_the_first_leaves():
    rig = waits_for_its_load()
    (first,) = rig.live
    second = add(rig, PROMPT)
    output = rig.schedule()
    rig.update()
    assert not [t for t in output.transfers if t.kind is LOAD] and second in rig.admissions
    rig.abort([first])
    rig.land()
    rig.calm()
    rig.drain(rig.most_steps())
    assert rig.num_moved[LOAD, BlockOutcome.DONE] == 4
    assert rig.admissions[second].num_host_cached_tokens == 8


@pytest.mark.parametrize("outcome", [BlockOutcome.FAILED, BlockOutcome.CORRUPT])
def test_whoever_shares_a_load_that_failed_computes(outcome):
    rig = waits_for_its_load()
    second = add(rig, PROMPT)
    rig.schedule()
    rig.update()
    for flight in rig.content.flights.values():
        if flight.transfer.kind is LOAD:
            flight.outcomes = (BlockOutcome.DONE, outcome, BlockOutcome.DONE, BlockOutcome.DONE)
    rig.land()
    rig.calm()
    rig.drain(rig.most_steps())
    assert rig.num_moved[LOAD, outcome] == 1 and second in rig.outcomes
    assert set(rig.outcomes.values()) == {"length"}


def test_a_choice_waits_for_its_leaders_load():
    """A leader that yielded has its prompt back once it has arrived: nobody may take it over before."""
    rig = make_rig(num_blocks=8, max_num_seqs=2)
    rig.add([1] * 8, 4, "low", n=2)
    rig.step()
    high = add(rig, [2] * 13, 2, "high")
    assert rig.step().preempted == ("g0/0",)
    while high in rig.live:
        rig.step()
    freeze(rig)
    rig.link = SLOW
    assert not rig.schedule().scheduled
    rig.update()
    assert flying(rig, LOAD)
    rig.schedule()
    rig.update()
    assert rig.live["g0/1"].table is None
    rig.land()
    rig.calm()
    rig.drain(rig.most_steps())
    assert set(rig.outcomes.values()) == {"length"} and rig.num_restarts == 0


def test_who_yielded_while_it_is_stored_finds_its_blocks_again():
    """The store was for others to have its places; it comes back by a hit, and nothing is stored twice."""
    rig = yielded_and_is_stored()
    stores = [f.transfer for f in rig.content.flights.values() if f.transfer.kind is STORE]
    assert any(transfer.purpose is Purpose.FREES_BLOCKS for transfer in stores)
    rig.land()
    rig.calm()
    num_before = rig.scheduler.stats().recomputed_tokens
    rig.drain(rig.most_steps())
    assert rig.outcomes["g0/0"] == "length"
    assert rig.scheduler.stats().recomputed_tokens - num_before <= 3  # the block that was not full, and one token


def test_who_yielded_starts_again_upon_blocks_that_are_still_being_stored():
    rig = yielded_and_is_stored()
    held = set(flying(rig, STORE))
    rig.abort([name for name in rig.live if name != "g0/0"])
    (scheduled,) = rig.schedule().scheduled
    assert scheduled.request_id == "g0/0" and scheduled.num_computed_tokens > 0
    assert held & set(scheduled.new_block_ids)
    rig.update()
    rig.check()
    rig.land()
    rig.calm()
    rig.drain(rig.most_steps())
    assert rig.outcomes["g0/0"] == "length" and not rig.num_moved[LOAD, BlockOutcome.DONE]


def test_of_who_yields_in_its_prompt_only_full_blocks_are_saved():
    rig = make_rig(max_num_seqs=1, max_num_batched_tokens=5)
    low = add(rig, PROMPT, 4, "low")
    rig.step()  # two blocks and a half
    add(rig, OTHER, 2, "high")
    output = rig.schedule()
    assert output.preempted == (low,)
    saved = [t.block_hashes for t in output.transfers if t.kind is STORE]
    assert saved == [rig.truth.hashes(rig.truth.chain(PROMPT))[:2]]
    rig.drain(rig.most_steps())
    assert set(rig.outcomes.values()) == {"length"}


def test_the_border_comes_down_over_what_a_copy_holds():
    """Held blocks beyond it stay with their copy; when it ends they go to nobody."""
    rig = waits_for_its_load()
    rig.abort(sorted(rig.live))
    held = set(flying(rig, LOAD))
    rig.link = LinkSnapshot(num_blocks=1)
    output = rig.schedule()
    rig.update()
    assert output.demand.num_blocks_beyond == len({b for b in held if b >= 1})
    rig.land()
    assert rig.step().demand.num_blocks_beyond == len({b for b in held if b >= 1})
    assert rig.step().demand.num_blocks_beyond == 0
    rig.link = NO_LINK
    serve(rig, PROMPT)


@pytest.mark.parametrize("num_slots", [2, 3])
def test_slots_that_are_read_into_are_not_given_to_stores(num_slots):
    """One prompt comes from the disk while another is computed and would like to be saved."""
    rig = make_rig(num_slots=num_slots, num_disk_blocks=12)
    serve(rig, PROMPT)
    rig = rig.restarted()
    assert rig.num_on_disk(rig.known_chains[0]) > 0
    freeze(rig)
    add(rig, PROMPT)
    rig.schedule()
    rig.update()
    slots = set(flying(rig, READ))
    assert slots
    add(rig, OTHER, 8)
    for _ in range(6):
        rig.schedule()
        rig.update()
        assert set(flying(rig, READ)) == slots  # `TierContent` sees any other copy into them
    rig.calm()
    rig.land()
    rig.drain(rig.most_steps())
    rig.settle()
