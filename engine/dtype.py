"""The number type of weights, activations and KV: what `--dtype` means on this machine."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU_INFO_PATH = Path("/proc/cpuinfo")
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
_ARM_BFLOAT16_FLAGS = frozenset({"bf16"})


def resolve_dtype(name: str, cpu_info_path: Path = CPU_INFO_PATH) -> torch.dtype:
    """The torch type of "float32", "bfloat16", "float16", or "auto": bfloat16 where the processor multiplies it.

    Raises:
        ValueError: another name.
    """
    if name == "auto":
        return torch.bfloat16 if has_native_bfloat16(cpu_info_path) else torch.float32
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}, it must be one of auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def has_native_bfloat16(cpu_info_path: Path = CPU_INFO_PATH, machine: str | None = None) -> bool:
    """Whether the processor has dot products of bfloat16 (AVX512-BF16, AMX, or those of ARMv8.6).

    Where the system does not tell (no /proc), the answer is no: float32 is right everywhere.
    """
    try:
        text = cpu_info_path.read_text(errors="replace")
    except OSError:
        return False
    wanted = _ARM_BFLOAT16_FLAGS if (machine or platform.machine()) in {"aarch64", "arm64"} else _BFLOAT16_FLAGS
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return not wanted.isdisjoint(value.split())
    return False
