"""Models of the hub by id, kept in the hub client's own cache, which other tools share.

Only data is fetched: safetensors or one GGUF file, JSON and tokenizer files; never a pickle, never code.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from server.model_error import ModelError, ModelNotCachedError

_TEXT_PATTERNS = ("*.json", "tokenizer*", "*.model", "merges.txt", "vocab.txt", "*.jinja")
_NEVER = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.py", "*.msgpack", "*.h5")
_HUB_TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class HubId:
    """`owner/name`, `owner/name@revision` or `owner/name:file.gguf`."""

    repo: str
    revision: str | None = None
    file_name: str | None = None


class HubSnapshots:
    """Finds and fetches snapshots."""

    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint`: None is the client's own choice."""
        self._endpoint = endpoint

    def find(self, hub_id: HubId) -> Path:
        """The snapshot on this machine, without any network.

        Raises:
            ModelNotCachedError: it is not here, or not whole.
        """
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        missing = ModelNotCachedError(f"{hub_id.repo} is not on this machine: run `headrace pull {hub_id.repo}`")
        try:
            # Weights are left out here: which of them were fetched is seen below.
            snapshot = snapshot_download(
                hub_id.repo, revision=hub_id.revision, allow_patterns=list(_TEXT_PATTERNS), local_files_only=True
            )
        except LocalEntryNotFoundError:
            raise missing from None
        except HFValidationError as error:
            raise ModelError(f"{hub_id.repo!r} is no directory and no hub id: {error}") from error
        folder = Path(snapshot)
        path = folder / hub_id.file_name if hub_id.file_name else folder
        if not path.exists() or not _is_whole(folder, hub_id):
            raise missing
        return path

    def fetch(self, hub_id: HubId) -> Path:
        """Download what is missing of a snapshot, with progress bars on the terminal.

        Raises:
            ModelError: the hub is out of reach, has no such model, or the model has no file that Headrace reads.
        """
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HFValidationError, HTTPError, OfflineModeIsEnabled

        try:
            info = HfApi(self._endpoint).model_info(hub_id.repo, revision=hub_id.revision, timeout=_HUB_TIMEOUT_S)
            files = [sibling.rfilename for sibling in info.siblings or ()]
            folder = snapshot_download(
                hub_id.repo,
                revision=hub_id.revision,
                allow_patterns=[*self.weights(hub_id, files), *_TEXT_PATTERNS],
                ignore_patterns=list(_NEVER),
                etag_timeout=_HUB_TIMEOUT_S,
                endpoint=self._endpoint,
            )
        except (HFValidationError, OfflineModeIsEnabled, HTTPError, OSError) as error:
            raise ModelError(
                f"{hub_id.repo} could not be fetched from the hub: {str(error).strip() or type(error).__name__}. "
                "Where the hub is out of reach, copy the model's directory or GGUF file here and give its path."
            ) from error
        return Path(folder, hub_id.file_name) if hub_id.file_name else Path(folder)

    @staticmethod
    def weights(hub_id: HubId, files: list[str]) -> list[str]:
        """Names of the weight files to fetch.

        Raises:
            ModelError: there are none, or the user has to choose.
        """
        if hub_id.file_name:
            if hub_id.file_name not in files:
                raise ModelError(
                    f"{hub_id.repo} has no file {hub_id.file_name}; its GGUF files: {_gguf(files) or 'none'}"
                )
            return [hub_id.file_name]
        if safetensors := [name for name in files if name.endswith(".safetensors") and "/" not in name]:
            return safetensors
        gguf_files = _gguf(files)
        if len(gguf_files) == 1:
            return gguf_files
        if gguf_files:
            raise ModelError(
                f"{hub_id.repo} has {len(gguf_files)} GGUF files, name one as {hub_id.repo}:FILE: "
                f"{', '.join(gguf_files)}"
            )
        raise ModelError(f"{hub_id.repo} has neither safetensors nor GGUF files, and nothing else is loaded")


def _gguf(files: list[str]) -> list[str]:
    return sorted(name for name in files if name.endswith(".gguf"))


def _is_whole(folder: Path, hub_id: HubId) -> bool:
    """False where a download was cut short: a shard of the index, or every weight file, is missing."""
    if hub_id.file_name:
        return (folder / hub_id.file_name).is_file()
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return all((folder / name).is_file() for name in set(json.loads(index.read_text())["weight_map"].values()))
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf"))
