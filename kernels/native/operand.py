"""How tensors are handed to native operations: pointers, strides, and the checks that those trust.

Operations read raw memory: whatever they are not told, they cannot see. So every function here raises ValueError
rather than let a call go wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""`hr_dtype` of headrace.h."""


def dtype_code(tensor: Tensor, name: str) -> int:
    """`hr_dtype` of an activation.

    Raises:
        ValueError: it is of another type.
    """
    code = DTYPE_CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(f"{name} is {tensor.dtype}, it must be float32, bfloat16 or float16")
    return code


def check(tensor: Tensor, name: str, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
    """Raises ValueError: another shape or type, not on the CPU, or neighbours of the last axis are not adjacent."""
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if dtypes and tensor.dtype not in dtypes:
        raise ValueError(f"{name} is {tensor.dtype}, expected {' or '.join(map(str, dtypes))}")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}, expected the CPU")
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{name} has stride {tensor.stride(-1)} along its last axis, expected 1")


def check_vector(tensor: Tensor, name: str, width: int) -> None:
    """Raises ValueError: not a float32 vector of that width."""
    check(tensor, name, (width,), torch.float32)
