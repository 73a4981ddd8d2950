"""Serve a model on a free port, load it with `headrace bench`, end it.

    python benchmarks/serve_and_bench.py [BENCH OPTIONS] [-- MODEL AND SERVE OPTIONS]

Without bench options: half interactive, half batch requests, one a second, for 30 seconds.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

DEFAULT_LOAD = (
    *("--rate", "1", "--duration", "30"),
    *("--class", "interactive:0.5,prompt=64,output=32", "--class", "batch:0.5,prompt=512,output=64"),
)
HEADRACE = (sys.executable, "-m", "server")
STOP_WITHIN_S = 60.0


@contextlib.contextmanager
def serving(arguments: list[str]) -> Iterator[str]:
    """The URL of a server that is ready; it is drained in the end.

    Raises:
        RuntimeError: it ended before it was ready.
    """
    command = [*HEADRACE, "serve", "--port", "0", "--log-level", "warning", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                sys.stderr.write(line)
                if match := re.search(r"Headrace answers at (\S+)", line):
                    yield match[1]
                    break
            else:
                raise RuntimeError("the server did not start")
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=STOP_WITHIN_S)
            process.kill()


def main() -> int:
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    load, serve = arguments[:split], arguments[split + 1 :]
    with serving(serve) as url:
        return subprocess.run([*HEADRACE, "bench", url, *(load or DEFAULT_LOAD)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
