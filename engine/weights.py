"""Loading a model: configuration, then each tensor piece by piece straight into the slab it is multiplied from."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.config_fields import ConfigFields
from engine.dtype import resolve_dtype
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import ModelFileError
from engine.models.architectures import gguf_architecture, hf_architecture
from engine.models.decoder import Decoder
from engine.models.decoder_weights import DecoderWeights, Parameter, allocate_weights, parameters
from engine.models.native_decoder import NativeDecoder
from engine.models.tensor_names import TensorNames
from engine.models.weight_formats import native_formats, torch_formats
from engine.safetensors_file import SafetensorsFile
from engine.tensor_source import TensorSource
from kernels.native_library import NativeLibrary

PIECE_BYTES = 4 * 1024**2
"""Of a tensor in float32 that exist at a time on the way into the slab."""
MAX_NAMES_IN_MESSAGE = 5


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything the engine needs of a model."""

    config: ModelConfig
    decoder: Decoder | NativeDecoder
    dtype: torch.dtype
    weights_bytes: int


def load_model(
    path: str,
    dtype: str,
    progress: Callable[[float], None],
    *,
    batch_invariant: bool = False,
    library: NativeLibrary | None = None,
) -> LoadedModel:
    """Load a GGUF file, or a directory with config.json and model.safetensors.

    Args:
        dtype: "auto", "float32", "bfloat16" or "float16": of weights, activations and KV.
        progress: told the fraction read so far, from 0 to 1.
        batch_invariant: see `Decoder`; a decoder on native kernels always is.
        library: of native kernels; None: PyTorch's operators.

    Raises:
        ModelFileError: a file is missing, damaged or not what the configuration says.
        UnsupportedModelError: an architecture, option or number format that is not supported.
    """
    torch_dtype = resolve_dtype(dtype)
    with contextlib.ExitStack() as opened:
        source, config, names = _open(Path(path), opened)
        _check_names(source, config, names)
        formats = torch_formats(config, torch_dtype) if library is None else native_formats(config, torch_dtype)
        weights = allocate_weights(config, formats)
        _fill(source, config, weights, names, progress)
    decoder: Decoder | NativeDecoder
    if library is None:
        decoder = Decoder(config, weights, torch_dtype, batch_invariant=batch_invariant)
    else:
        decoder = NativeDecoder(config, weights, torch_dtype, library)
    return LoadedModel(config, decoder, torch_dtype, weights.num_bytes)


def _open(path: Path, opened: contextlib.ExitStack) -> tuple[TensorSource, ModelConfig, TensorNames]:
    """Open the tensors, to be closed with `opened`, and read the configuration."""
    try:
        return _open_directory(path, opened) if path.is_dir() else _open_gguf(path, opened)
    except ValueError as error:  # of ModelConfig: sizes that fit no model
        raise ModelFileError(f"{path}: impossible configuration: {error}") from error


def _open_gguf(path: Path, opened: contextlib.ExitStack) -> tuple[TensorSource, ModelConfig, TensorNames]:
    file = GGUFFile(path)
    opened.callback(file.close)
    architecture = gguf_architecture(file)
    return file, architecture.read_gguf_config(file), architecture.gguf_names


def _open_directory(path: Path, opened: contextlib.ExitStack) -> tuple[TensorSource, ModelConfig, TensorNames]:
    config_path = path / "config.json"
    fields = ConfigFields(_read_json(config_path), str(config_path))
    architecture = hf_architecture(fields)
    config = architecture.read_hf_config(fields)
    generation_path = path / "generation_config.json"
    if generation_path.is_file():
        generation = ConfigFields(_read_json(generation_path), str(generation_path))
        eos_token_ids = dict.fromkeys((*generation.token_ids("eos_token_id"), *config.eos_token_ids))
        config = dataclasses.replace(config, eos_token_ids=tuple(eos_token_ids))
    file = _open_safetensors(path)
    opened.callback(file.close)
    return file, config, architecture.hf_names


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: holds a {type(value).__name__}, expected an object")
    return value


def _open_safetensors(directory: Path) -> SafetensorsFile:
    path = directory / "model.safetensors"
    if path.is_file():
        return SafetensorsFile(path)
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        raise ModelFileError(f"{index}: weights in several files are not supported; merge them into {path.name}")
    raise ModelFileError(f"{path}: no such file; weights are read from safetensors or GGUF alone, never from pickles")


def _check_names(source: TensorSource, config: ModelConfig, names: TensorNames) -> None:
    """Compare the file's tensors with what the configuration wants, before any memory is taken.

    Raises:
        ModelFileError: tensors are missing, left over, or of another shape.
    """
    if config.num_layers > len(source.shapes):
        raise ModelFileError(f"{source.name}: {len(source.shapes)} tensors are too few for {config.num_layers} layers")
    with torch.device("meta"):
        weights = allocate_weights(
            config, torch_formats(config, torch.float32), lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8)
        )
        wanted = {names.of(p.name): p.shape for p in parameters(weights)}
    missing = [name for name in wanted if name not in source.shapes]
    if missing:
        raise ModelFileError(f"{source.name}: {len(missing)} tensors are missing: {_some(missing)}")
    for name, shape in wanted.items():
        if source.shapes[name] != shape:
            raise ModelFileError(f"{source.name}: {name} has shape {source.shapes[name]}, expected {shape}")
    ignored = [*names.ignored, *([re.escape(names.of("head"))] if config.tie_word_embeddings else [])]
    extra = [
        name
        for name in source.shapes
        if name not in wanted and not any(re.fullmatch(pattern, name) for pattern in ignored)
    ]
    if extra:
        raise ModelFileError(
            f"{source.name}: {len(extra)} tensors that {config.architecture} with this configuration has not: "
            f"{_some(extra)}"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES_IN_MESSAGE} more" if len(names) > MAX_NAMES_IN_MESSAGE else ""
    return ", ".join(names[:MAX_NAMES_IN_MESSAGE]) + more


def _fill(
    source: TensorSource,
    config: ModelConfig,
    weights: DecoderWeights,
    names: TensorNames,
    progress: Callable[[float], None],
) -> None:
    progress(0.0)
    num_written = 0
    for parameter in parameters(weights):
        _copy(source, names, parameter, config.head_dim)
        num_written += len(parameter.data)
        progress(min(1.0, num_written / weights.num_bytes))
    progress(1.0)


def _copy(source: TensorSource, names: TensorNames, parameter: Parameter, head_dim: int) -> None:
    """Read a tensor in pieces of whole heads and whole tiles, and pack each."""
    name, kind = names.of(parameter.name), parameter.name.rpartition(".")[2]
    is_interleaved = names.has_interleaved_rotary_pairs and kind in {"query", "key", "query_bias", "key_bias"}
    num_rows = parameter.shape[0]
    row_elements = parameter.shape[1] if len(parameter.shape) > 1 else 1
    unit = math.lcm(head_dim, parameter.weight_format.tile_rows)
    step = max(1, PIECE_BYTES // (4 * row_elements * unit)) * unit
    for start in range(0, num_rows, step):
        rows = source.read_rows(name, start, min(start + step, num_rows))
        parameter.write(start, _split_pairs(rows, head_dim) if is_interleaved else rows)


def _split_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Rows 2d, 2d + 1 of each head → rows d, d + D/2. rows: [n * D, ...]."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
