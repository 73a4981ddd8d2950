"""What users may say about memory and the link, and what contradicts itself."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from offload.config import EmulatedId, OffloadConfig
from offload.hardware import HARDWARE


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
        ({"host_memory_bytes": 5}, r"host_memory_bytes \(5\) has no use .* give device_memory_bytes"),
        ({"host_memory_directory_path": "/d"}, r"host_memory_directory_path \(/d\) has no use"),
        ({"link_gbps": 2.0}, r"link_gbps \(2.0\) has no use"),
        ({"emulate": "h100"}, r"emulate \(h100\) has no use"),
    ],
)
def test_contradictions_are_named_with_the_way_out(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OffloadConfig(**options)


def test_what_can_be_emulated_is_what_the_table_has() -> None:
    assert set(get_args(EmulatedId)) == set(HARDWARE)
