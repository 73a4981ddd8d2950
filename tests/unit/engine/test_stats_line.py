import logging

import msgspec
import pytest

from engine.stats import DiskRoomLog, StatsLine
from tests.engine_harness import EngineHarness, add_group
from tests.fake_async_engine import fake_stats
from tests.tier_records import kv_tiers


def test_a_line_of_statistics_comes_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="engine.stats")
    harness = EngineHarness()
    stats = harness.run(add_group("g", tuple(range(20, 30)), max_tokens=20)).stats
    line = StatsLine(interval_s=10.0)
    for now_s, num_tokens in ((100.0, 0), (105.0, 50), (110.0, 200), (115.0, 300), (130.0, 400)):
        line.observe(msgspec.structs.replace(stats, generation_tokens=num_tokens), now_s)
    rates = [record.getMessage().split("generation ")[1].split(" ")[0] for record in caplog.records]
    assert rates == ["20", "10"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "+ host 3/8 + disk 5/32,"),
        ({"num_disk_blocks": 0}, "+ host 3/8,"),
        ({"is_host_on": False}, "+ host 3/8 (off) + disk 5/32,"),
        ({"is_disk_on": False, "is_disk_writable": False}, "+ host 3/8 + disk 5/32 (off),"),
        ({"is_disk_writable": False}, "+ host 3/8 + disk 5/32 (read only),"),
    ],
)
def test_the_line_tells_how_full_each_tier_is(
    changes: dict[str, object], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="engine.stats")
    stats = fake_stats(1)
    tiers = kv_tiers(num_host_used=3, num_disk_used=5, **changes)
    line = StatsLine(interval_s=10.0)
    line.observe(msgspec.structs.replace(stats, kv_tiers=tiers), 100.0)
    line.observe(msgspec.structs.replace(stats, kv_tiers=tiers), 110.0)
    line.observe(msgspec.structs.replace(stats, kv_tiers=None), 120.0)
    with_tiers, without = (record.getMessage() for record in caplog.records)
    assert text in with_tiers
    assert "host" not in without and "disk" not in without


def test_each_change_of_the_disks_room_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = DiskRoomLog()
    log.observe(None)
    for changes in (
        {},
        {"num_disk_used": 9},
        {"num_disk_blocks": 20},
        {"num_disk_blocks": 20},
        {"num_disk_blocks": 22},
        {"num_disk_blocks": 22, "is_disk_on": False},
        {"num_disk_blocks": 21, "num_disk_used": 19, "is_disk_writable": False},
        {"num_disk_blocks": 21, "is_disk_writable": False},
    ):
        log.observe(kv_tiers(block_bytes=2**20, **changes))
    shrunk, grown, closed = ((record.levelname, record.getMessage()) for record in caplog.records)
    assert shrunk == (
        "WARNING",
        "the disk is full: room for 20 KV blocks there, 20.0 MiB, instead of 32; more is tried later",
    )
    assert grown == ("WARNING", "the disk may hold more again: 22 KV blocks, 22.0 MiB, instead of 20")
    assert (
        closed[0] == "WARNING" and "read only until the server starts again, with 19 blocks (room for 21" in closed[1]
    )
