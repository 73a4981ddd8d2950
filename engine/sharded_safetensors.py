"""A model in several safetensors files, joined by their index, as one source of tensors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from engine.model_error import ModelFileError, some_names
from engine.safetensors_file import SafetensorsFile
from engine.safetensors_index import read_safetensors_index

logger = logging.getLogger(__name__)


class ShardedSafetensors:
    """Every file that the index names, open until `close`: one handle each, and nothing mapped.

    The index says where a tensor is; what else the files or the directory hold is left alone, with a line in the log.
    """

    def __init__(self, index: Path) -> None:
        """Raises ModelFileError: the index or a file is damaged or missing, or they do not agree."""
        self.name = str(index)
        self._shard_of = read_safetensors_index(index)
        shard_names = sorted(set(self._shard_of.values()))
        _check_present(index, shard_names)
        with contextlib.ExitStack() as opened:
            self._shards: dict[str, SafetensorsFile] = {}
            for shard_name in shard_names:
                self._shards[shard_name] = SafetensorsFile(index.with_name(shard_name))
                opened.callback(self._shards[shard_name].close)
            self._check_agreement()
            opened.pop_all()
        self.shapes: Mapping[str, tuple[int, ...]] = {
            tensor: self._shards[shard].shapes[tensor] for tensor, shard in self._shard_of.items()
        }
        self.number_formats: Mapping[str, str] = {
            tensor: self._shards[shard].number_formats[tensor] for tensor, shard in self._shard_of.items()
        }

    def read_rows(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_rows`; as stored."""
        return self._shards[self._shard_of[tensor]].read_rows(tensor, start, stop)

    def read_stored(self, tensor: str, start: int, stop: int) -> Tensor:
        """As `TensorSource.read_stored`."""
        return self._shards[self._shard_of[tensor]].read_stored(tensor, start, stop)

    def close(self) -> None:
        """As `TensorSource.close`."""
        for shard in self._shards.values():
            shard.close()

    def _check_agreement(self) -> None:
        """Each tensor of the index is in its file and in no other.

        Raises:
            ModelFileError: one is not.
        """
        num_unlisted = 0
        for shard_name, shard in self._shards.items():
            for tensor in shard.shapes:
                listed = self._shard_of.get(tensor)
                num_unlisted += listed is None
                if listed is not None and listed != shard_name:
                    raise ModelFileError(
                        f"{self.name}: {tensor} is said to be in {listed}, but {shard_name} holds it too or instead; "
                        "the files are not of one checkpoint"
                    )
        for tensor, shard_name in self._shard_of.items():
            if tensor not in self._shards[shard_name].shapes:
                raise ModelFileError(f"{self.name}: {tensor} is said to be in {shard_name}, which does not hold it")
        if num_unlisted:
            logger.warning("%s: %d tensors in its files are not listed and not read", self.name, num_unlisted)


def _check_present(index: Path, shard_names: list[str]) -> None:
    """Raises ModelFileError: files are missing. Says in the log which others there are."""
    missing = [name for name in shard_names if not index.with_name(name).is_file()]
    if missing:
        raise ModelFileError(
            f"{index}: {len(missing)} of {len(shard_names)} files are missing: {some_names(missing)}; "
            "pull the model again or copy them here"
        )
    others = sorted({path.name for path in index.parent.glob("*.safetensors")} - set(shard_names))
    if others:
        logger.info("%s: not listed and not read: %s", index, some_names(others))
