"""Small engines with tiers in a state that matters: a request waits, is loaded, is stored, has yielded."""

from __future__ import annotations

import random

from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import TierConfig, TransferKind
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
