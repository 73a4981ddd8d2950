"""What the bytes of an engine's KV blocks depend on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.model_config import ModelConfig
from kernels.native_library import NativeLibrary
from offload.fingerprint import digest_model, identify_processor
from offload.kv_fingerprint import KVFingerprint


def identify_kv(
    engine: EngineConfig, model: ModelConfig, dtype: torch.dtype, block_size: int, library: NativeLibrary | None
) -> KVFingerprint:
    """Of the blocks that `engine` computes on this machine.

    Args:
        model: as it computes: rotations may depend on the longest request.
        library: None: PyTorch's operators compute.

    Raises:
        OSError: the model's files cannot be read.
    """
    stored = "stored" if engine.dtype == "auto" else engine.dtype
    path = Path(engine.model_path)
    return KVFingerprint(
        model=f"{path.name}, files {digest_model(path)}, as read {_digest(repr(model))}",
        weights=stored if engine.quantize is None else f"{engine.quantize} of {stored}",
        dtype=str(dtype).removeprefix("torch."),
        kernels=_kernels(engine, library),
        block_size=block_size,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
    )


def _kernels(engine: EngineConfig, library: NativeLibrary | None) -> str:
    if library is not None:
        return f"native {library.isa} {library.path.stem.rpartition('-')[2]}"
    form = "batch-invariant" if engine.batch_invariant else "plain"
    return f"torch {torch.__version__} {form} on {identify_processor().features}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
