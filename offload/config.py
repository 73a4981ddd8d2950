"""What a user says about memory and the link."""

from __future__ import annotations

import dataclasses
from typing import Literal

EmulatedId = Literal["a10", "t4", "rtx-4090", "a100-40", "a100-80", "h100", "h200", "gh200"]
MIN_LINK_GBPS = 0.001
MAX_LINK_GBPS = 2000.0
"""As fast as a record may say: a larger number is a unit gone wrong."""


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
        metadata={"help": "Host memory for streamed weights; auto: as much as they need.", "min": 0},
    )
    host_memory_directory_path: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Keep streamed weights in a file in this directory instead of in main memory; it ends with the "
            "process.",
            "option": "host-memory-directory",
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
        if self.device_memory_bytes is None:
            for field in dataclasses.fields(self):  # all others say how to stream
                if (value := getattr(self, field.name)) != field.default:
                    raise ValueError(
                        f"{field.name} ({value}) has no use while all weights stay on the device; "
                        "give device_memory_bytes"
                    )

    @property
    def is_capped(self) -> bool:
        """Weights may have to be streamed."""
        return self.device_memory_bytes is not None
