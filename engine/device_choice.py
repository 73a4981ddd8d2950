"""What an engine computes on."""

from __future__ import annotations

import logging

from kernels.block_copy import copy_blocks
from kernels.native.block_copy import NativeBlockCopy
from kernels.native_library import NativeLibrary
from offload.available_memory import available_memory_bytes
from offload.cpu_device import CpuDevice
from offload.cuda_device import CudaDevice
from offload.device import Device

logger = logging.getLogger(__name__)


def choose_device(is_restart: bool, library: NativeLibrary | None) -> Device:
    """What the engine computes on: so far a CPU, in whose memory a part plays the accelerator's.

    Args:
        is_restart: where it did fit, files in the page cache may hide for a moment that it still does.
        library: copies blocks over its links; None: a loop does.
    """
    copier = copy_blocks if library is None else NativeBlockCopy(library)
    available = (lambda: None) if is_restart else available_memory_bytes
    device = CpuDevice(available, copier)
    logger.info("device: %s (%s)", device.kind, device.name)
    if CudaDevice.is_available():
        idle = CudaDevice()
        logger.warning(
            "%s with %.1f GB of memory is not used: the models of this version compute on a CPU",
            idle.name, idle.total_bytes() / 1e9,
        )  # fmt: skip
    return device
