"""What a user says about memory and the link."""

from __future__ import annotations

import dataclasses
from typing import Literal

DEFAULT_DISK_BYTES = 8 * 2**30
EmulatedId = Literal["a10", "t4", "rtx-4090", "a100-40", "a100-80", "h100", "h200", "gh200"]
MIN_LINK_GBPS = 0.001
MAX_LINK_GBPS = 2000.0
"""As fast as a record may say: a larger number is a unit gone wrong."""
_OF_KV = frozenset({"host_memory_bytes", "disk_path", "disk_bytes"})
_OF_KV_LINK = frozenset({"link_gbps", "kv_checksum"})
"""Of use without streamed weights wherever KV blocks leave the device."""


@dataclasses.dataclass(frozen=True, slots=True)
class OffloadConfig:
    """Where weights and KV may lie. `metadata["help"]` is the command line's text.

    Raises:
        ValueError: two values contradict each other.
    """

    device_memory_bytes: int | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Device memory for weights, slots, KV and workspace together; weights that do not fit are streamed "
            "from the host. auto: all weights stay on the device, and --kv-cache-memory is the KV's.",
            "min": 1,
        },
    )
    host_memory_bytes: int | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Host memory for streamed weights and KV blocks together; auto: what the weights need, and for KV "
            "twice the device's where --device-memory is given, enough for --disk-path otherwise.",
            "min": 0,
        },
    )
    host_memory_directory_path: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Keep streamed weights in a file in this directory instead of in main memory; it ends with the "
            "process.",
            "option": "host-memory-directory",
        },
    )
    disk_path: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Keep KV blocks in files below this directory too; a server that starts again finds them. "
            "They come back through --host-memory: no more of a prompt at a time than it holds.",
            "option": "disk-path",
        },
    )
    disk_bytes: int | None = dataclasses.field(
        default=None,
        metadata={
            "help": f"Most that KV blocks may take of --disk-path; auto: {DEFAULT_DISK_BYTES // 2**30} GiB.",
            "min": 1,
            "option": "disk-size",
        },
    )
    kv_checksum: Literal["sampled", "always"] = dataclasses.field(
        default="sampled",
        metadata={
            "help": "Which KV blocks are compared with their checksums when they come back from host memory: one of "
            "16, or all. Those that come from the disk always are."
        },
    )
    link_gbps: float | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Hold the link between host and device to that many 10^9 bytes per second, each way: "
            "emulates a slower one.",
            "min": MIN_LINK_GBPS,
            "max": MAX_LINK_GBPS,
        },
    )
    emulate: EmulatedId | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Hold the link so slow that copying a layer takes as many times its computing as on that GPU."
        },
    )
    offload_strategy: Literal["interval", "none", "next_layer", "static_fraction", "static_group"] = dataclasses.field(
        default="interval",
        metadata={"help": "Which layers are streamed; interval follows the targets, the others are for comparison."},
    )
    offload_objective: Literal["kv", "host-bytes"] = dataclasses.field(
        default="kv",
        metadata={
            "help": "kv: stream the least that leaves the KV memory needed; host-bytes: the most that targets allow."
        },
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low, high, value = field.metadata.get("min"), field.metadata.get("max"), getattr(self, field.name)
            if low is not None and value is not None and value < low:
                raise ValueError(f"{field.name} is {value}, it must be at least {low}")
            if high is not None and value is not None and value > high:
                raise ValueError(f"{field.name} is {value}, it must be at most {high}")
        if self.link_gbps is not None and self.emulate is not None:
            raise ValueError(
                f"link_gbps ({self.link_gbps:g}) and emulate ({self.emulate}) both set the speed of the link; give one"
            )
        if self.disk_path is not None and not self.disk_path.strip():
            raise ValueError("disk_path is empty; name a directory, or leave it away")
        if self.disk_path is None and self.disk_bytes is not None:
            raise ValueError(f"disk_bytes ({self.disk_bytes}) has no use without a directory; give disk_path")
        if self.disk_path is not None and self.host_memory_bytes == 0:
            raise ValueError(
                f"host_memory_bytes is 0, and blocks on their way to disk_path ({self.disk_path}) pass "
                "through there; give it some, or leave it away"
            )
        if self.device_memory_bytes is None:
            self._require_use()

    def _require_use(self) -> None:
        """All weights stay: most of the others say how to stream them."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in _OF_KV or (field.name in _OF_KV_LINK and self.wants_kv_tiers):
                continue
            what, way_out = "all weights stay on the device", "give device_memory_bytes"
            if field.name in _OF_KV_LINK:
                what, way_out = "everything stays on the device", "give device_memory_bytes or host_memory_bytes"
            raise ValueError(f"{field.name} ({value}) has no use while {what}; {way_out}")

    @property
    def wants_kv_tiers(self) -> bool:
        """KV blocks were given a place beside the device: with it they must get one."""
        return self.disk_path is not None or (self.device_memory_bytes is None and bool(self.host_memory_bytes))

    @property
    def may_have_kv_tiers(self) -> bool:
        """They may get a place."""
        return self.wants_kv_tiers or (self.is_capped and self.host_memory_bytes != 0)

    @property
    def disk_limit_bytes(self) -> int:
        """In force where there is a disk."""
        return DEFAULT_DISK_BYTES if self.disk_bytes is None else self.disk_bytes

    @property
    def is_capped(self) -> bool:
        """Weights may have to be streamed."""
        return self.device_memory_bytes is not None
