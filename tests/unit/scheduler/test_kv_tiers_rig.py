"""The rig of the tiers itself, against schedules written by hand: it passes a good one and catches every bad one."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import BlockOutcome, GatedLoad, KVTransfer, Purpose, TierConfig, TransferKind
from scheduler.output import FinishedRequest, ScheduledRequest, SchedulerOutput, Verdict, VerdictKind
from scheduler.request import FinishReason
from tests.scheduler_model import small_classes
from tests.tier_rig import TierRig
from tests.tier_weather import Weather

PROMPT = [1, 2, 3]
STORE, LOAD, READ = TransferKind.STORE, TransferKind.LOAD, TransferKind.READ


class ScriptedScheduler:
    """Answers with what the test wrote down."""

    def __init__(self) -> None:
        self.steps: list[dict[str, tuple]] = []
        self.finishes: list[tuple[str, ...]] = []
        self.results: list = []
        self.num_live = 0
        self._kv = SimpleNamespace(pool=SimpleNamespace(num_references=lambda _: 9, _hash_of=[None] * 8))
        self._next_id = 0

    def add(self, specs, now_s):
        return Verdict(VerdictKind.ADMIT, specs[0].slo.granted)

    def schedule(self, now_s, link):
        self._next_id += 1
        return SchedulerOutput(self._next_id, now_s, **{"scheduled": (), **self.steps.pop(0)})

    def update(self, output, result, now_s):
        self.results.append(result)
        names = self.finishes.pop(0) if self.finishes else ()
        return tuple(FinishedRequest(n, n.split("/")[0], FinishReason.LENGTH) for n in names)


@pytest.fixture
def scripted(monkeypatch):
    """A rig over a script: blocks of two tokens, eight of them on the device and four on the host."""
    scheduler = ScriptedScheduler()
    monkeypatch.setattr("tests.tier_rig.Scheduler", lambda *_: scheduler)
    monkeypatch.setattr("tests.tier_rig.STOP_TOKEN", -1)  # every answer is as long as asked for
    config = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4, block_size=2)
    rig = TierRig(config, small_classes(), 8, TierConfig(4, 8, 1), weather=Weather(random.Random(0)))
    rig.add(PROMPT, 4)
    rig.add(PROMPT, 4)
    return SimpleNamespace(rig=rig, scheduler=scheduler, hashes=rig.live["g0/0"].spec.block_hashes, weather=rig.weather)


def first(name: str, table: tuple[int, ...], num_computed: int = 0) -> ScheduledRequest:
    """The start of a request: what is left of its prompt."""
    return ScheduledRequest(name, len(PROMPT) - num_computed, num_computed, 0, table, True)


def copy_of(case, number: int, kind: TransferKind, *, block: int = 0, slot: int = 0) -> KVTransfer:
    blocks = (block,) if kind in (STORE, LOAD) else ()
    positions = (0,) if kind is TransferKind.WRITE else ()
    return KVTransfer(number, kind, Purpose.ADMITTED, case.hashes, blocks, (slot,), positions=positions)


def play(case, *steps: dict[str, tuple]) -> None:
    """Schedule and update each."""
    case.scheduler.steps.extend(steps)
    for _ in steps:
        case.rig.schedule()
        case.rig.update()


def stored(case) -> None:
    """The first request runs in blocks 0 and 1; block 0 is in slot 0."""
    play(case, {"scheduled": (first("g0/0", (0, 1)),)}, {"transfers": (copy_of(case, 0, STORE),)})


GATED = {"gated_loads": (GatedLoad("g1/0", 1),)}


def loaded(case, **changed: tuple) -> dict[str, tuple]:
    """The second request starts upon a load into block 2."""
    return {
        "scheduled": (first("g1/0", (2, 3), 2),),
        "transfers": (copy_of(case, 1, LOAD, block=2),),
        **GATED,
        **changed,
    }


def test_a_block_that_is_stored_and_loaded_is_the_same_block(scripted):
    stored(scripted)
    play(scripted, loaded(scripted))
    results = scripted.scheduler.results
    assert [r.transfers for r in results[:1]] == [()]
    assert [(t.transfer_id, t.is_done) for r in results for t in r.transfers] == [(0, True), (1, True)]
    assert [one.num_sampled for one in results[-1].results] == [1]
    chains = [scripted.rig.live[name].sequence.chain for name in ("g0/0", "g1/0")]
    assert chains[0][:3] == chains[1][:3] and [len(chain) for chain in chains] == [4, 4]


def test_a_read_brings_what_a_write_took(scripted):
    stored(scripted)
    write = copy_of(scripted, 1, TransferKind.WRITE)
    play(scripted, {"transfers": (write,)})
    assert scripted.rig.disk == {scripted.hashes[0]: scripted.rig.truth.content(scripted.hashes[0])}
    play(scripted, {"transfers": (copy_of(scripted, 2, READ, slot=3),)})
    load = KVTransfer(3, LOAD, Purpose.ADMITTED, scripted.hashes, (2,), (3,))
    gate = (GatedLoad("g1/0", 3),)
    play(scripted, loaded(scripted, transfers=(load,), gated_loads=gate))


@pytest.mark.parametrize("outcome", [BlockOutcome.FAILED, BlockOutcome.CORRUPT])
def test_a_request_whose_load_failed_is_void_and_starts_again(scripted, outcome):
    stored(scripted)
    scripted.weather.failing, scripted.weather.failures[LOAD] = {LOAD: 1.0}, (outcome,)
    play(scripted, loaded(scripted))
    last = scripted.scheduler.results[-1]
    assert [(one.num_sampled, one.new_block_hashes) for one in last.results] == [(0, ())]
    assert [t.outcomes for t in last.transfers] == [(outcome,)]
    choice = scripted.rig.live["g1/0"]
    assert choice.table is None and choice.sequence.num_committed_tokens == 3
    play(scripted, {"scheduled": (first("g1/0", (4, 5)),)})
    with pytest.raises(AssertionError, match="a hole"):  # as if it had never run
        play(scripted, {"scheduled": (ScheduledRequest("g1/0", 1, 3, 0, (4, 5), True),)})


def test_going_on_after_a_failed_load_is_caught(scripted):
    stored(scripted)
    scripted.weather.failing = {LOAD: 1.0}
    play(scripted, loaded(scripted))
    with pytest.raises(AssertionError, match="starts without a table"):
        play(scripted, {"scheduled": (ScheduledRequest("g1/0", 1, 3, 2, (), True),)})


def test_a_late_store_still_has_what_it_was_to_copy(scripted):
    scripted.weather.longest_s = 100.0
    stored(scripted)
    assert not scripted.scheduler.results[-1].transfers
    scripted.rig.now_s = 100.0
    play(scripted, {"scheduled": (ScheduledRequest("g0/0", 1, 3, 2, (), True),)})
    assert [t.is_done for t in scripted.scheduler.results[-1].transfers] == [True]


BAD = {
    "not gated": ("not gated on it", lambda case: [loaded(case, gated_loads=())]),
    "gated on nothing": ("not under way", lambda case: [loaded(case, transfers=())]),
    "a gate of nobody": ("does not compute", lambda case: [loaded(case, scheduled=())]),
    "computed and loaded": ("loaded and computed", lambda case: [loaded(case, scheduled=(first("g1/0", (2, 3)),))]),
    "an empty slot": ("slot 1: not what", lambda case: [{"transfers": (copy_of(case, 1, LOAD, block=2, slot=1),)}]),
    "another block": ("other tokens' KV", lambda case: [{"transfers": (copy_of(case, 1, STORE, block=1, slot=1),)}]),
    "the same number": ("comes again", lambda case: [{"transfers": (copy_of(case, 0, STORE, slot=1),)}]),
    "the wrong table": ("reads the KV of other tokens", lambda case: [{"scheduled": (first("g1/0", (6, 3), 2),)}]),
    "tokens twice": ("tokens twice", lambda case: [{"scheduled": (ScheduledRequest("g0/0", 1, 2, 2, (), True),)}]),
    "two writers": (
        "write block 1",
        lambda case: [{"scheduled": (ScheduledRequest("g0/0", 1, 3, 2, (), True), first("g1/0", (0, 1), 2))}],
    ),
    "nothing under way": ("2 requests wait", lambda case: [{}]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_step_is_caught(scripted, name):
    message, steps = BAD[name]
    stored(scripted)
    with pytest.raises(AssertionError, match=message):
        play(scripted, *steps(scripted))


BAD_WHILE_STORED = {
    "the block is written": ("which a copy holds", lambda case: [{"scheduled": (first("g1/0", (0, 3)),)}]),
    "the slot is filled again": (
        "slot {0} is an end",
        lambda case: [{"transfers": (KVTransfer(9, READ, Purpose.WAITING, case.hashes, (), (0,)),)}],
    ),
    "half a slot is loaded": ("slot {0} is an end", lambda case: [loaded(case)]),
    "the block is filled": (
        "block {0} is an end",
        lambda case: [{"transfers": (KVTransfer(9, LOAD, Purpose.ADMITTED, case.hashes, (0,), (1,)),)}],
    ),
}


@pytest.mark.parametrize("name", BAD_WHILE_STORED)
def test_whoever_touches_the_ends_of_a_copy_under_way_is_caught(scripted, name):
    message, steps = BAD_WHILE_STORED[name]
    scripted.weather.longest_s = 100.0
    stored(scripted)
    with pytest.raises(AssertionError, match=message.replace("{", r"\{").replace("}", r"\}")):
        play(scripted, *steps(scripted))


def test_a_flipped_byte_is_found_by_who_loads_it(scripted):
    stored(scripted)
    assert scripted.rig.content.slots_at_rest() == [0]
    scripted.rig.content.flip(0)
    play(scripted, loaded(scripted))
    assert scripted.scheduler.results[-1].transfers[0].outcomes == (BlockOutcome.CORRUPT,)
    assert scripted.scheduler.results[-1].results[0].num_sampled == 0


def test_a_sharer_of_a_load_that_failed_starts_again_too(scripted):
    stored(scripted)
    rig = scripted.rig
    rig.add(PROMPT, 4)
    scripted.weather.failing = {LOAD: 1.0}
    both = (first("g1/0", (2, 3), 2), first("g2/0", (2, 4), 2))
    with pytest.raises(AssertionError, match="g2/0 reads block 2 of load 1, not gated"):
        play(scripted, loaded(scripted, scheduled=both))
    rig.steps.clear()
    for name in ("g1/0", "g2/0"):
        rig.live[name].stop()
    play(scripted, loaded(scripted, scheduled=both, gated_loads=(GatedLoad("g1/0", 1), GatedLoad("g2/0", 1))))
    assert [one.num_sampled for one in scripted.scheduler.results[-1].results] == [0, 0]
    assert rig.live["g1/0"].table is None and rig.live["g2/0"].table is None


def test_what_is_free_is_poison(scripted):
    stored(scripted)
    scripted.scheduler._kv.pool.num_references = lambda block: 0 if block == 0 else 9
    play(scripted, {"scheduled": (ScheduledRequest("g0/0", 1, 3, 2, (), True),)})
    with pytest.raises(AssertionError, match="reads the KV of other tokens at 0"):
        play(scripted, {"scheduled": (first("g1/0", (0, 3), 2),)})


def test_room_on_the_disk_ends_and_files_vanish(scripted):
    stored(scripted)
    scripted.rig.content.disk_room = 0
    play(scripted, {"transfers": (copy_of(scripted, 1, TransferKind.WRITE),)})
    play(scripted, {"transfers": (copy_of(scripted, 2, READ, slot=1),)})
    outcomes = [t.outcomes for r in scripted.scheduler.results for t in r.transfers]
    assert outcomes == [(BlockOutcome.DONE,), (BlockOutcome.FULL,), (BlockOutcome.ABSENT,)]
