"""Both ends of a copy belong to it until its result is taken in, whatever becomes of the request it was for."""

from __future__ import annotations

import random

import pytest

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, Purpose, TierConfig, TransferKind
from scheduler.link import NO_LINK, LinkDirection, LinkSnapshot
from tests.scheduler_model import small_classes
from tests.tier_rig import TierRig
from tests.tier_weather import Weather

STORE, LOAD, READ, WRITE = TransferKind.STORE, TransferKind.LOAD, TransferKind.READ, TransferKind.WRITE
FOR_EVER_S = 1e9
SLOW = LinkSnapshot(h2d=LinkDirection(100.0, 50.0), d2h=LinkDirection(100.0, 50.0))
"""A block takes a second: no step waits for it."""
PROMPT = [1] * 9
"""Four full blocks of two tokens, and a token."""
OTHER = [2] * 9


@pytest.fixture(autouse=True)
def whole_answers(monkeypatch):
    """No stop token: every answer is as long as asked for."""
    monkeypatch.setattr("tests.tier_rig.STOP_TOKEN", -1)


def make_rig(
    num_blocks: int = 12,
    num_slots: int = 12,
    num_disk_blocks: int = 0,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
) -> TierRig:
    config = SchedulerConfig(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        block_size=2,
        scheduler_policy="priority",
    )
    classes = small_classes(queue_cap_tokens=10_000, max_wait_s=1e6)
    tiers = TierConfig(num_slots, num_disk_blocks, 100)
    return TierRig(config, classes, num_blocks, tiers, weather=Weather(random.Random(0)))


def serve(rig: TierRig, prompt: list[int], num_output_tokens: int = 1) -> str:
    """Compute it from end to end; its copies end too."""
    name = add(rig, prompt, num_output_tokens)
    rig.drain(rig.most_steps())
    rig.settle()
    return name


def add(rig: TierRig, prompt: list[int], num_output_tokens: int = 4, slo_class: str = "middle") -> str:
    before = set(rig.live)
    rig.add(prompt, num_output_tokens, slo_class)
    (name,) = set(rig.live) - before
    return name


def forget_device(rig: TierRig) -> None:
    """The border comes down and goes up again: what is cached on the device is gone, but for block 0."""
    for rig.link in (LinkSnapshot(num_blocks=1), NO_LINK):
        rig.step()


def on_host(**options: int) -> TierRig:
    """The prompt's blocks are on the host alone."""
    rig = make_rig(**options)
    serve(rig, [9] * 3)  # gets block 0
    serve(rig, PROMPT)
    forget_device(rig)
    return rig


def flying(rig: TierRig, kind: TransferKind) -> list[int]:
    """Device blocks or, of what moves between host and disk, slots of copies under way."""
    transfers = [flight.transfer for flight in rig.content.flights.values() if flight.transfer.kind is kind]
    return [end for t in transfers for end in (t.device_blocks or t.host_slots)]


def freeze(rig: TierRig) -> None:
    rig.weather.longest_s = FOR_EVER_S


def never_scheduled() -> TierRig:
    rig = on_host()
    freeze(rig)
    add(rig, PROMPT)
    return rig


def waits_for_the_disk() -> TierRig:
    rig = make_rig(num_disk_blocks=12)
    serve(rig, PROMPT)
    rig = rig.restarted()
    freeze(rig)
    add(rig, PROMPT)
    rig.schedule()
    rig.update()
    assert len(flying(rig, READ)) == 4
    return rig


def waits_for_its_load() -> TierRig:
    rig = on_host()
    freeze(rig)
    rig.link = SLOW
    add(rig, PROMPT)
    output = rig.schedule()
    rig.update()
    assert len(flying(rig, LOAD)) == 4 and not output.scheduled and output.admissions
    return rig


def is_computed_upon_its_load() -> TierRig:
    rig = on_host()
    freeze(rig)
    add(rig, PROMPT)
    output = rig.schedule()
    assert output.gated_loads and output.scheduled
    return rig


def is_stored() -> TierRig:
    rig = make_rig()
    freeze(rig)
    add(rig, PROMPT, 8)
    for _ in range(3):
        rig.schedule()
        rig.update()
    assert flying(rig, STORE)
    return rig


def is_loaded_and_stored() -> TierRig:
    """One request's blocks are stored, those of another are loaded."""
    rig = on_host(num_blocks=20)
    freeze(rig)
    add(rig, OTHER, 8)
    for _ in range(3):
        rig.schedule()
        rig.update()
    rig.link = SLOW
    add(rig, PROMPT)
    rig.schedule()
    rig.update()
    assert flying(rig, STORE) and flying(rig, LOAD)
    return rig


def yielded_and_is_stored() -> TierRig:
    """A higher class takes its place; its blocks leave for the host first."""
    rig = make_rig(num_blocks=16, max_num_seqs=1)
    freeze(rig)
    add(rig, PROMPT, 12, "low")
    for _ in range(9):
        rig.schedule()
        rig.update()
    add(rig, OTHER, 2, "high")
    output = rig.schedule()
    rig.update()
    assert output.preempted == ("g0/0",)
    assert flying(rig, STORE)
    return rig


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


def test_a_restarted_engine_finds_what_its_disk_holds():
    rig = make_rig(num_disk_blocks=12)
    serve(rig, PROMPT)
    assert rig.num_on_disk(rig.known_chains[0]) == 4
    rig = rig.restarted()
    name = serve(rig, PROMPT)
    admission = rig.admissions[name]
    assert (admission.num_cached_tokens, admission.num_disk_cached_tokens) == (8, 8)
    assert rig.scheduler.stats().prompt_tokens_computed == 1


@pytest.mark.parametrize("is_gone", [False, True], ids=["broken", "gone"])
def test_a_file_that_is_not_as_it_was_is_computed_and_forgotten(is_gone):
    rig = make_rig(num_disk_blocks=12)
    serve(rig, PROMPT)
    rig = rig.restarted()
    third = rig.truth.hashes(rig.known_chains[0])[2]
    if is_gone:
        del rig.disk[third]
    else:
        rig.disk[third] = None
    name = serve(rig, PROMPT)
    assert rig.admissions[name].num_disk_cached_tokens == 4
    assert rig.num_moved[READ, BlockOutcome.ABSENT if is_gone else BlockOutcome.CORRUPT] == 1
    assert None not in rig.disk.values()
    if is_gone:  # it is not taken for present any more, and written again
        assert rig.disk[third] == rig.truth.content(third)


def test_a_flipped_byte_on_the_host_is_computed_again():
    rig = on_host()
    for slot in rig.content.slots_at_rest():
        rig.content.flip(slot)
    serve(rig, PROMPT)
    assert rig.num_moved[LOAD, BlockOutcome.CORRUPT] >= 1
    forget_device(rig)
    serve(rig, PROMPT)  # and what was saved instead is right
    assert set(rig.outcomes.values()) == {"length"}


def test_a_tier_that_fails_is_turned_off_and_tried_again_while_serving_goes_on():
    rig = make_rig()
    rig.weather.failing, rig.weather.failures[STORE] = {STORE: 1.0}, (BlockOutcome.FAILED,)
    for which in range(4):
        serve(rig, [which + 1] * 9)
    tiers = rig.scheduler.stats().tiers
    assert tiers is not None and not tiers.is_host_on
    assert set(rig.outcomes.values()) == {"length"}
    rig.weather.failing.clear()
    rig.now_s += 31.0
    serve(rig, [5] * 9)
    serve(rig, [6] * 9)
    tiers = rig.scheduler.stats().tiers
    assert tiers is not None and tiers.is_host_on and tiers.num_host_used > 0


def test_a_full_disk_is_read_only_and_serves_what_it_has():
    rig = make_rig(num_disk_blocks=12)
    serve(rig, PROMPT)
    serve(rig, OTHER)
    rig.content.disk_room = 0
    for which in range(3, 6):
        serve(rig, [which] * 9)
        rig.now_s += 31.0
    tiers = rig.scheduler.stats().tiers
    assert tiers is not None and tiers.is_disk_on and not tiers.is_disk_writable
    assert rig.num_moved[WRITE, BlockOutcome.FULL] == 2  # once, and once more after room was made
    assert rig.num_on_disk(rig.truth.chain(OTHER)) == 4
    forget_device(rig)
    name = serve(rig, OTHER)
    assert rig.admissions[name].num_disk_cached_tokens == 8
