"""The directory of the sockets between the HTTP process and its engine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import zmq

from engine.errors import EngineStartError

_LONGEST_NAME = "/1000000000.out"


class IpcDirectory:
    """A fresh directory of mode 0700 in the system's place for temporary files; `remove` when done."""

    def __init__(self) -> None:
        """Raises EngineStartError: its path is too long for a Unix socket."""
        self.path = Path(tempfile.mkdtemp(prefix="headrace-"))
        length = len(os.fsencode(self.path)) + len(_LONGEST_NAME)
        if length > zmq.IPC_PATH_MAX_LEN:
            self.remove()
            raise EngineStartError(
                f"a socket in {self.path} would have a path of {length} bytes, the system allows "
                f"{zmq.IPC_PATH_MAX_LEN}; set TMPDIR to a directory with a shorter path"
            )

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
