"""Accelerators and links that a plan can be made for without having them.

Peak numbers are the makers' (dense, 16 bit). Effective ones are what decoders reach: bandwidth as seen by matrix-vector
products, operations as seen by a large matrix product in a model. They are round, within about 25 %: a measured record
replaces them. Sources: the constants that published systems' tables were computed with for A10, A100-80, H100 and H200;
link rates of nvbandwidth#53, vllm#42212, vllm#6496 (pinned, one way); the others by the same ratios to their peaks.
"""

from __future__ import annotations

import dataclasses
import difflib

from offload.errors import OffloadError


class UnknownHardwareError(OffloadError):
    """No entry of that name; the message lists the known ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class LinkHardware:
    """A way between host and device memory."""

    id: str
    name: str
    peak_bytes_per_s: float
    """One way, by specification."""
    h2d_bytes_per_s: float
    """Effective, from pinned memory."""
    d2h_bytes_per_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator in its usual slot."""

    id: str
    name: str
    memory_bytes: int
    peak_flops: float
    """Operations a second, 16 bit, dense."""
    flops: float
    """Effective."""
    peak_memory_bytes_per_s: float
    memory_bytes_per_s: float
    """Effective."""
    link: LinkHardware
    layer_fixed_s: float = 20e-6
    """Launch of a layer's kernels, from a captured graph."""
    step_fixed_s: float = 1e-3
    """Scheduler, batch and messages."""
    restart_s: float = 50e-6
    """What a load that waited for its slot costs on top: an event of one stream that another waits for."""


def _link(id: str, name: str, peak_gb: float, h2d_gb: float, d2h_gb: float) -> LinkHardware:
    return LinkHardware(id, name, peak_gb * 1e9, h2d_gb * 1e9, d2h_gb * 1e9)


LINKS: dict[str, LinkHardware] = {
    link.id: link
    for link in (
        _link("pcie3", "PCIe 3.0 x16", 15.75, 12, 12),
        _link("pcie4", "PCIe 4.0 x16", 31.5, 25, 25),
        _link("pcie5", "PCIe 5.0 x16", 63, 52, 52),
        _link("c2c", "NVLink-C2C", 450, 342, 295),
    )
}


def _gpu(
    id: str, name: str, memory_gb: int, tera: tuple[float, float], memory_gbs: tuple[float, float], link: str
) -> Hardware:
    (peak_tera, tera_flops), (peak_gbs, gbs) = tera, memory_gbs
    return Hardware(
        id, name, memory_gb * 10**9, peak_tera * 1e12, tera_flops * 1e12, peak_gbs * 1e9, gbs * 1e9, LINKS[link]
    )


HARDWARE: dict[str, Hardware] = {
    gpu.id: gpu
    for gpu in (
        _gpu("t4", "NVIDIA T4 16 GB", 16, (65, 40), (320, 255), "pcie3"),
        _gpu("a10", "NVIDIA A10 24 GB", 24, (125, 85), (600, 480), "pcie4"),
        _gpu("rtx-4090", "NVIDIA RTX 4090 24 GB", 24, (165, 150), (1008, 850), "pcie4"),
        _gpu("a100-40", "NVIDIA A100 40 GB", 40, (312, 220), (1555, 1200), "pcie4"),
        _gpu("a100-80", "NVIDIA A100 80 GB", 80, (312, 220), (2039, 1550), "pcie4"),
        _gpu("h100", "NVIDIA H100 80 GB", 80, (989, 600), (3350, 2600), "pcie5"),
        _gpu("h200", "NVIDIA H200 141 GB", 141, (989, 600), (4800, 3700), "pcie5"),
        _gpu("gh200", "NVIDIA GH200 96 GB", 96, (989, 600), (4000, 3100), "c2c"),
    )
}


def find_hardware(id: str) -> Hardware:
    """The accelerator of that id.

    Raises:
        UnknownHardwareError: there is none.
    """
    found = HARDWARE.get(id.lower())
    if found is None:
        close = difflib.get_close_matches(id.lower(), HARDWARE, n=1)
        guess = f" Did you mean {close[0]}?" if close else ""
        raise UnknownHardwareError(f"{id!r} is no known accelerator; known are {', '.join(HARDWARE)}.{guess}")
    return found
