"""Loading a model: configuration, then each tensor piece by piece straight into the slab it is multiplied from."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from engine.config_fields import ConfigFields
from engine.dtype import resolve_dtype
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import ModelFileError, some_names
from engine.models.architectures import gguf_architecture, hf_architecture
from engine.models.decoder import Decoder
from engine.models.decoder_weights import DecoderFormats, DecoderWeights, make_weights, parameters, weight_sizes
from engine.models.native_decoder import NativeDecoder
from engine.models.tensor_names import TensorNames
from engine.models.weight_formats import FormatChoice, Quantize
from engine.models.weights_placement import HostPlacement, WeightSizes, WeightsPlacement
from engine.safetensors_file import SafetensorsFile
from engine.safetensors_index import INDEX_NAME
from engine.sharded_safetensors import ShardedSafetensors
from engine.tensor_copy import TensorCopier
from engine.tensor_source import TensorSource
from kernels.linear import DenseFormat
from kernels.native_library import NativeLibrary


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    """Everything the engine needs of a model."""

    config: ModelConfig
    decoder: Decoder | NativeDecoder
    dtype: torch.dtype
    weights_bytes: int
    bytes_by_format: Mapping[str, int]
    """Of the matrices, by the name of their format."""


def load_model(
    path: str,
    dtype: str,
    progress: Callable[[float], None],
    *,
    batch_invariant: bool = False,
    library: NativeLibrary | None = None,
    quantize: Quantize | None = None,
    place: Callable[[ModelConfig, WeightSizes], WeightsPlacement] = lambda _, sizes: HostPlacement(sizes),
    context_tokens: Callable[[ModelConfig], int] | None = None,
) -> LoadedModel:
    """Load a GGUF file, or a directory with config.json and model.safetensors, or several such files and their index.

    Args:
        dtype: "float32", "bfloat16" or "float16": of weights, activations and KV. "auto": weights as they are stored
            (see `FormatChoice`), the others bfloat16 where the processor computes it, else float32.
        progress: told the fraction read so far, from 0 to 1.
        batch_invariant: see `Decoder`; a decoder on native kernels always is.
        library: of native kernels; None: PyTorch's operators.
        quantize: see `FormatChoice`.
        place: gives the weights' memory once the file's header has told their sizes; what it raises passes through.
        context_tokens: the longest sequence that will be served, which some rotations depend on; None: what the model
            allows. What it raises is raised.

    Raises:
        ModelFileError: a file is missing, damaged or not what the configuration says.
        UnsupportedModelError: an architecture, option or number format that is not supported.
    """
    torch_dtype = resolve_dtype(dtype)
    choice = FormatChoice(torch_dtype, library is not None, None if dtype == "auto" else torch_dtype, quantize)
    with contextlib.ExitStack() as opened:
        source, config, names = _open(Path(path), opened)
        if context_tokens is not None:
            config = config.for_context(context_tokens(config))
        _check_names(source, config, names)
        formats = choice.formats(config, source, names)
        placement = place(config, weight_sizes(config, formats))
        weights = make_weights(config, formats, placement)
        _fill(weights, TensorCopier(source, names, config.head_dim, library), progress)
    access = placement.loaded()
    decoder: Decoder | NativeDecoder
    if library is None:
        decoder = Decoder(config, weights, torch_dtype, batch_invariant=batch_invariant, access=access)
    else:
        decoder = NativeDecoder(config, weights, torch_dtype, library, access)
    return LoadedModel(config, decoder, torch_dtype, weights.num_bytes, weights.bytes_by_format)


def read_weight_sizes(path: Path, choice: FormatChoice) -> tuple[ModelConfig, WeightSizes]:
    """What a model's weights would take, from headers alone; a directory may have config.json and no weights.

    Raises:
        ModelFileError: a file is missing, damaged or not what the configuration says.
        UnsupportedModelError: an architecture, option or number format that is not supported.
    """
    with contextlib.ExitStack() as opened:
        if path.is_dir() and not any((path / name).is_file() for name in ("model.safetensors", INDEX_NAME)):
            config, _ = _read_config(path)
            plain = choice.plain(choice.dtype or choice.activations)
            return config, weight_sizes(config, DecoderFormats.uniform(config, plain, choice.activations))
        source, config, names = _open(path, opened)
        _check_names(source, config, names)
        return config, weight_sizes(config, choice.formats(config, source, names))


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
    return file, architecture.read_config(file), architecture.names


def _open_directory(path: Path, opened: contextlib.ExitStack) -> tuple[TensorSource, ModelConfig, TensorNames]:
    config, names = _read_config(path)
    file = _open_safetensors(path)
    opened.callback(file.close)
    return file, config, names


def _read_config(path: Path) -> tuple[ModelConfig, TensorNames]:
    config_path = path / "config.json"
    fields = ConfigFields(_read_json(config_path), str(config_path))
    architecture = hf_architecture(fields)
    config = architecture.read_config(fields)
    generation_path = path / "generation_config.json"
    if generation_path.is_file():
        generation = ConfigFields(_read_json(generation_path), str(generation_path))
        eos_token_ids = dict.fromkeys((*generation.token_ids("eos_token_id"), *config.eos_token_ids))
        config = dataclasses.replace(config, eos_token_ids=tuple(eos_token_ids))
    return config, architecture.names


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


def _open_safetensors(directory: Path) -> TensorSource:
    path, index = directory / "model.safetensors", directory / INDEX_NAME
    if path.is_file():
        return SafetensorsFile(path)
    if index.is_file():
        return ShardedSafetensors(index)
    raise ModelFileError(
        f"{path}: no such file, nor {INDEX_NAME}; weights are read from safetensors or GGUF alone, never from pickles"
    )


def _check_names(source: TensorSource, config: ModelConfig, names: TensorNames) -> None:
    """Compare the file's tensors with what the configuration wants, before any memory is taken.

    Raises:
        ModelFileError: tensors are missing, left over, or of another shape.
    """
    if config.num_layers > len(source.shapes):
        raise ModelFileError(f"{source.name}: {len(source.shapes)} tensors are too few for {config.num_layers} layers")
    formats = DecoderFormats.uniform(config, DenseFormat(torch.float32), torch.float32)
    nowhere = HostPlacement(
        weight_sizes(config, formats), lambda size: torch.empty(size, dtype=torch.uint8, device="meta")
    )
    wanted = _wanted_shapes(make_weights(config, formats, nowhere), names)
    missing = [name for name in wanted if name not in source.shapes]
    if missing:
        raise ModelFileError(f"{source.name}: {len(missing)} tensors are missing: {some_names(missing)}")
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
            f"{some_names(extra)}"
        )


def _wanted_shapes(weights: DecoderWeights, names: TensorNames) -> dict[str, tuple[int, ...]]:
    """By the file's names; parts of one tensor lie one after the other in it."""
    wanted: dict[str, tuple[int, ...]] = {}
    for parameter in parameters(weights):
        name, (rows, *rest) = names.of(parameter.name), parameter.shape
        wanted[name] = (rows + wanted.get(name, (0,))[0], *rest)
    return wanted


def _fill(weights: DecoderWeights, copier: TensorCopier, progress: Callable[[float], None]) -> None:
    progress(0.0)
    num_written = 0
    taken_rows: Counter[str] = Counter()
    for parameter in parameters(weights):
        name = copier.names.of(parameter.name)
        copier.copy(parameter, taken_rows[name])
        taken_rows[name] += parameter.shape[0]
        num_written += len(parameter.data)
        progress(min(1.0, num_written / weights.num_bytes))
    progress(1.0)
