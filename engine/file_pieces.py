"""Reading a large file piece by piece.

Plain reads and not a mapping: the pages of a mapping count as this process's memory while it stands, and a model would
take its file's size beside its own while it loads.
"""

from __future__ import annotations

import os
from pathlib import Path

from engine.model_error import ModelFileError


class FilePieces:
    """An open file; `close` is idempotent."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError: the file cannot be opened."""
        self._path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read ({error})") from error

    def read(self, offset_bytes: int, num_bytes: int) -> bytearray:
        """Exactly `num_bytes` from `offset_bytes` on.

        Raises:
            ModelFileError: the file ends before, or the device fails.
        """
        buffer = bytearray(num_bytes)
        view, done = memoryview(buffer), 0
        while done < num_bytes:
            try:
                count = os.preadv(self._file.fileno(), [view[done:]], offset_bytes + done)
            except OSError as error:
                raise ModelFileError(f"{self._path}: cannot be read at byte {offset_bytes + done} ({error})") from error
            if count == 0:
                raise ModelFileError(
                    f"{self._path}: truncated: {num_bytes} bytes expected at byte {offset_bytes}, found {done}"
                )
            done += count
        return buffer

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
