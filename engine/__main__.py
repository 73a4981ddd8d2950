"""`python -m engine`: an engine process, started by the supervisor with its configuration on standard input."""

from __future__ import annotations

import logging
import sys

from engine.process import serve
from engine.process_config import ProcessConfig
from engine.runner_factory import build_model_runner


def main() -> int:
    config = ProcessConfig.decode(sys.stdin.buffer.read())
    logging.basicConfig(stream=sys.stderr, level=config.log_level, format="%(levelname)s %(name)s: %(message)s")
    return serve(config, build_model_runner)


if __name__ == "__main__":
    sys.exit(main())
