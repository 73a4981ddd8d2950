"""Models of the hub by id, kept in the hub client's own cache, which other tools share.

Only data is fetched: safetensors or one GGUF file, JSON and tokenizer files; never a pickle, never code.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from engine.model_error import ModelFileError
from engine.safetensors_index import INDEX_NAME, read_safetensors_index
from server.model_error import ModelError, ModelNotCachedError

_TEXT_PATTERNS = ("*.json", "tokenizer*", "*.model", "merges.txt", "vocab.txt", "*.jinja")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NEVER = (*(f"*{suffix}" for suffix in _PICKLES), "*.py", "*.msgpack", "*.h5")
_HUB_TIMEOUT_S = 10.0
_SINGLE_FILE = "model.safetensors"


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

        The hub's client goes on where a file was cut short, and compares each with the size that the hub says.

        Raises:
            ModelError: the hub is out of reach, has no such model, or the model has no file that Headrace reads.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError, HTTPError, OfflineModeIsEnabled

        try:
            info = HfApi(self._endpoint).model_info(hub_id.repo, revision=hub_id.revision, timeout=_HUB_TIMEOUT_S)
            files = [sibling.rfilename for sibling in info.siblings or ()]
            names = self.weights(hub_id, files)
            if names == [INDEX_NAME]:
                names = self._shards(hub_id, self._download(hub_id, names) / INDEX_NAME, files)
            folder = self._download(hub_id, [*names, *_TEXT_PATTERNS])
        except (HFValidationError, OfflineModeIsEnabled, HTTPError, OSError) as error:
            raise ModelError(
                f"{hub_id.repo} could not be fetched from the hub: {str(error).strip() or type(error).__name__}. "
                "Where the hub is out of reach, copy the model's directory or GGUF file here and give its path."
            ) from error
        if not _is_whole(folder, hub_id):
            raise ModelError(f"{hub_id.repo} changed on the hub while it was fetched: pull it again")
        return folder / hub_id.file_name if hub_id.file_name else folder

    def fetch_config(self, hub_id: HubId) -> Path:
        """The folder with config.json of a snapshot; that file alone is downloaded, if it is not here.

        Raises:
            ModelError: the hub is out of reach, or has no such model.
        """
        from huggingface_hub.errors import HFValidationError, HTTPError, OfflineModeIsEnabled

        try:
            folder = self._download(hub_id, ["config.json"])
        except (HFValidationError, OfflineModeIsEnabled, HTTPError, OSError) as error:
            raise ModelError(
                f"config.json of {hub_id.repo} could not be fetched from the hub: "
                f"{str(error).strip() or type(error).__name__}."
            ) from error
        if not (folder / "config.json").is_file():
            raise ModelError(f"{hub_id.repo} has no config.json.")
        return folder

    def _download(self, hub_id: HubId, patterns: list[str]) -> Path:
        """The snapshot's folder, which then holds the files of the repository that match."""
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            hub_id.repo,
            revision=hub_id.revision,
            allow_patterns=patterns,
            ignore_patterns=list(_NEVER),
            etag_timeout=_HUB_TIMEOUT_S,
            endpoint=self._endpoint,
        )
        return Path(folder)

    @staticmethod
    def _shards(hub_id: HubId, index: Path, files: list[str]) -> list[str]:
        """Names of the files of the index.

        Raises:
            ModelError: the index is damaged, or names a file that the repository has not.
        """
        names = _shard_names(index)
        if missing := sorted(set(names) - set(files)):
            raise ModelError(
                f"{hub_id.repo} lacks {', '.join(missing)}, which its {INDEX_NAME} names: it cannot be loaded"
            )
        return names

    @staticmethod
    def weights(hub_id: HubId, files: list[str]) -> list[str]:
        """Names of the weight files to fetch; of a model in several files their index.

        Raises:
            ModelError: there are none, or the user has to choose.
        """
        if hub_id.file_name:
            if hub_id.file_name not in files:
                raise ModelError(
                    f"{hub_id.repo} has no file {hub_id.file_name}; its GGUF files: {_gguf(files) or 'none'}"
                )
            return [hub_id.file_name]
        for name in (_SINGLE_FILE, INDEX_NAME):  # the engine prefers them in this order
            if name in files:
                return [name]
        gguf_files = _gguf(files)
        if len(gguf_files) == 1:
            return gguf_files
        if gguf_files:
            raise ModelError(
                f"{hub_id.repo} has {len(gguf_files)} GGUF files, name one as {hub_id.repo}:FILE: "
                f"{', '.join(gguf_files)}"
            )
        pickles = [name for name in files if name.endswith(_PICKLES)]
        hint = f"; {pickles[0]} is a pickle, which can run code and is never loaded" if pickles else ""
        raise ModelError(
            f"{hub_id.repo} has neither {_SINGLE_FILE}, nor {INDEX_NAME}, nor a GGUF file{hint}: "
            "choose a repository that has one, or convert the model to safetensors"
        )


def _gguf(files: list[str]) -> list[str]:
    return sorted(name for name in files if name.endswith(".gguf"))


def _shard_names(index: Path) -> list[str]:
    """Raises ModelError: the index is damaged."""
    try:
        return sorted(set(read_safetensors_index(index).values()))
    except ModelFileError as error:
        raise ModelError(str(error)) from error


def _is_whole(folder: Path, hub_id: HubId) -> bool:
    """False where a download was cut short: a file of the index, or every weight file, is missing.

    Raises:
        ModelError: the index is damaged.
    """
    if hub_id.file_name:
        return (folder / hub_id.file_name).is_file()
    if (folder / _SINGLE_FILE).is_file():
        return True
    if (folder / INDEX_NAME).is_file():
        return all((folder / name).is_file() for name in _shard_names(folder / INDEX_NAME))
    return any(folder.glob("*.gguf"))
