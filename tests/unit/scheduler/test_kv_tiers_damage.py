"""What is wrong, gone or full in host memory or on disk costs a computation, and is never served or waited for."""

from __future__ import annotations

import pytest

from scheduler.kv_transfer import BlockOutcome
from tests.tier_states import (
    LOAD,
    OTHER,
    PROMPT,
    READ,
    STORE,
    WRITE,
    forget_device,
    make_rig,
    on_host,
    serve,
)


@pytest.fixture(autouse=True)
def whole_answers(monkeypatch):
    """No stop token: every answer is as long as asked for."""
    monkeypatch.setattr("tests.tier_rig.STOP_TOKEN", -1)


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
