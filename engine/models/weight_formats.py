"""Which format each matrix of a model is packed in."""

from __future__ import annotations

import torch

from engine.model_config import ModelConfig
from engine.models.decoder_weights import DecoderFormats
from kernels.linear import DenseFormat
from kernels.native.tiled_format import TiledFormat


def torch_formats(config: ModelConfig, dtype: torch.dtype) -> DecoderFormats:
    """Plain numbers for PyTorch's operators."""
    return DecoderFormats.uniform(config, DenseFormat(dtype), vectors=dtype)


def native_formats(config: ModelConfig, dtype: torch.dtype) -> DecoderFormats:
    """Plain numbers for the native kernels."""
    return DecoderFormats.uniform(config, TiledFormat(dtype), vectors=torch.float32)
