"""How many host slots KV blocks get, and what is said where there is no room for one."""

from __future__ import annotations

import pytest

from engine.errors import EngineStartError
from engine.kv_tier_size import check_kv_sizes, slots_beside_weights, slots_for_kv_alone
from offload.config import OffloadConfig

BLOCK = 1000
GIB = 2**30


def test_all_of_the_hosts_memory_is_kvs_where_no_weights_are_there() -> None:
    assert slots_for_kv_alone(OffloadConfig(host_memory_bytes=10_999), BLOCK, 500) == 10
    assert slots_for_kv_alone(OffloadConfig(host_memory_bytes=BLOCK, disk_path="/d"), BLOCK, 500) == 1


@pytest.mark.parametrize(("blocks_of_longest", "expected"), [(3, 64), (500, 500)])
def test_a_disk_alone_gets_slots_for_the_longest_request(blocks_of_longest: int, expected: int) -> None:
    assert slots_for_kv_alone(OffloadConfig(disk_path="/d"), BLOCK, blocks_of_longest) == expected


def test_memory_for_less_than_a_block_names_both_numbers() -> None:
    with pytest.raises(EngineStartError, match=r"--host-memory is 999 bytes, one KV block takes 1,000; raise it"):
        check_kv_sizes(OffloadConfig(host_memory_bytes=999), BLOCK, weights_stay=True)
    check_kv_sizes(OffloadConfig(host_memory_bytes=BLOCK), BLOCK, weights_stay=True)
    check_kv_sizes(OffloadConfig(device_memory_bytes=1, host_memory_bytes=999), BLOCK, weights_stay=False)


def test_a_disk_that_holds_no_file_is_refused_before_weights_are_read() -> None:
    """A file is the block and a header, in pieces of 4 KiB."""
    with pytest.raises(EngineStartError, match=r"--disk-size is 4,095 bytes, the file of one KV block takes 4,096"):
        check_kv_sizes(OffloadConfig(disk_path="/d", disk_bytes=4_095), BLOCK, weights_stay=True)
    check_kv_sizes(OffloadConfig(disk_path="/d", disk_bytes=4_096), BLOCK, weights_stay=True)


def beside(config: OffloadConfig, *, weights_bytes: int = 0, available_bytes: int | None = None) -> int:
    return slots_beside_weights(config, BLOCK, 100, 150, weights_bytes, available_bytes)


@pytest.mark.parametrize(
    ("config", "weights_bytes", "available_bytes", "expected"),
    [
        (OffloadConfig(device_memory_bytes=GIB, host_memory_bytes=50_000), 20_500, None, 29),
        (OffloadConfig(device_memory_bytes=GIB, host_memory_bytes=50_000), 50_000, None, 0),
        (OffloadConfig(device_memory_bytes=GIB, host_memory_bytes=50_000), 0, 9_000, 50),  # asked for: not shared
        (OffloadConfig(device_memory_bytes=GIB), 7_000, None, 200),
        (OffloadConfig(device_memory_bytes=GIB), 7_000, 400_000, 100),
        (OffloadConfig(device_memory_bytes=GIB), 7_000, 0, 0),
        (OffloadConfig(device_memory_bytes=GIB, disk_path="/d"), 7_000, None, 200),
        (OffloadConfig(device_memory_bytes=GIB, disk_path="/d"), 7_000, 0, 1),
    ],
)
def test_beside_weights(config: OffloadConfig, weights_bytes: int, available_bytes: int | None, expected: int) -> None:
    assert beside(config, weights_bytes=weights_bytes, available_bytes=available_bytes) == expected


def test_a_small_device_with_a_disk_gets_slots_for_the_longest_request() -> None:
    config = OffloadConfig(device_memory_bytes=GIB, disk_path="/d")
    assert slots_beside_weights(config, BLOCK, 10, 150, 0, None) == 150
    assert slots_beside_weights(config, BLOCK, 10, 15, 0, None) == 64
    assert slots_beside_weights(OffloadConfig(device_memory_bytes=GIB), BLOCK, 10, 150, 0, None) == 20


def test_a_disk_without_room_on_the_way_names_all_numbers() -> None:
    config = OffloadConfig(device_memory_bytes=GIB, host_memory_bytes=50_000, disk_path="/d")
    with pytest.raises(EngineStartError, match=r"is 50,000 bytes, .* take 49,500; .* --disk-path takes 1,000: raise"):
        beside(config, weights_bytes=49_500)
