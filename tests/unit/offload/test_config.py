"""What users may say about memory and the link, and what contradicts itself."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from offload.config import MAX_LINK_GBPS, EmulatedId, OffloadConfig
from offload.hardware import HARDWARE
from offload.record_check import MAX_LINK_BYTES_PER_S


def test_nothing_said_means_that_all_weights_stay() -> None:
    assert not OffloadConfig().is_capped
    assert OffloadConfig(device_memory_bytes=1).is_capped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_memory_bytes": 0}, "device_memory_bytes is 0, it must be at least 1"),
        ({"device_memory_bytes": 1, "host_memory_bytes": -1}, "host_memory_bytes is -1, it must be at least 0"),
        ({"device_memory_bytes": 1, "link_gbps": 0.0}, "link_gbps is 0.0, it must be at least 0.001"),
        ({"device_memory_bytes": 1, "link_gbps": 2.0, "emulate": "a10"}, r"link_gbps \(2\) and emulate \(a10\) both"),
        ({"host_memory_directory_path": "/d"}, r"host_memory_directory_path \(/d\) has no use"),
        ({"link_gbps": 2.0}, r"link_gbps \(2.0\) has no use .* give device_memory_bytes or host_memory_bytes"),
        ({"link_gbps": 2.0, "host_memory_bytes": 0}, r"link_gbps \(2.0\) has no use"),
        ({"kv_checksum": "always"}, r"kv_checksum \(always\) has no use while everything stays on the device"),
        ({"disk_bytes": 2**30}, r"disk_bytes \(1073741824\) has no use without a directory; give disk_path"),
        ({"disk_path": "/d", "disk_bytes": 0}, "disk_bytes is 0, it must be at least 1"),
        ({"disk_path": "/d", "host_memory_bytes": 0}, r"host_memory_bytes is 0, .* disk_path \(/d\) pass through"),
        ({"host_memory_bytes": 9, "host_memory_directory_path": "/d"}, r"host_memory_directory_path \(/d\) has no use"),
        ({"device_memory_bytes": 1, "link_gbps": 1e300}, r"link_gbps is 1e\+300, it must be at most 2000"),
        ({"emulate": "h100"}, r"emulate \(h100\) has no use"),
        ({"offload_strategy": "none"}, r"offload_strategy \(none\) has no use"),
        ({"offload_objective": "host-bytes"}, r"offload_objective \(host-bytes\) has no use"),
    ],
)
def test_contradictions_are_named_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OffloadConfig(**options)


@pytest.mark.parametrize(
    ("options", "wants", "may"),
    [
        ({}, False, False),
        ({"host_memory_bytes": 0}, False, False),
        ({"host_memory_bytes": 5}, True, True),
        ({"disk_path": "/d"}, True, True),
        ({"disk_path": "/d", "disk_bytes": 7, "kv_checksum": "always", "link_gbps": 1.0}, True, True),
        ({"device_memory_bytes": 1}, False, True),
        ({"device_memory_bytes": 1, "host_memory_bytes": 5}, False, True),
        ({"device_memory_bytes": 1, "host_memory_bytes": 0}, False, False),
        ({"device_memory_bytes": 1, "disk_path": "/d"}, True, True),
    ],
)
def test_kv_has_a_place_beside_the_device_where_somebody_gave_it_one(
    options: dict[str, Any], wants: bool, may: bool
) -> None:
    config = OffloadConfig(**options)
    assert (config.wants_kv_tiers, config.may_have_kv_tiers) == (wants, may)


def test_the_disk_has_a_size_that_nobody_need_name() -> None:
    assert OffloadConfig(disk_path="/d").disk_limit_bytes == 8 * 2**30
    assert OffloadConfig(disk_path="/d", disk_bytes=5).disk_limit_bytes == 5


def test_what_can_be_emulated_is_what_the_table_has() -> None:
    assert set(get_args(EmulatedId)) == set(HARDWARE)


def test_a_link_is_held_to_nothing_faster_than_what_a_record_may_say() -> None:
    assert MAX_LINK_GBPS * 1e9 == MAX_LINK_BYTES_PER_S
