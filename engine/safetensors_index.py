"""The index of a model whose tensors lie in several safetensors files: which file holds which tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.model_error import ModelFileError

INDEX_NAME = "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"[^/\\\0]+\.safetensors")
"""Of a file beside the index: neither a path nor another kind of file."""


def read_safetensors_index(path: Path) -> Mapping[str, str]:
    """Tensor name to file name, as the index says it; each is the name of a safetensors file in the same directory.

    Its `metadata` (total_size and the like) say nothing that the files do not say themselves, and are not read.

    Raises:
        ModelFileError: unreadable, not an index, a tensor is named twice, or a file lies elsewhere.
    """
    try:
        index = json.loads(path.read_bytes(), object_pairs_hook=_unique)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: not an index of safetensors files ({error})") from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{path}: has no weight_map, an object from tensor names to file names")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise ModelFileError(
                f"{path}: {tensor} is said to be in {shard!r}; only safetensors files in the index's own directory "
                f"are read, given by their plain names"
            )
    return weight_map


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice} is there twice")
    return result
