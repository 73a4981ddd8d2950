"""Log lines go to standard error, one form for all of them."""

from __future__ import annotations

import logging
import sys


def set_up_logging(level: str) -> None:
    """Send log messages of that level and above to standard error; the only place that touches the root logger."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        force=True,
    )
    # At INFO these tell of every request and of every connection; ours are told by metrics and the request log.
    for noisy in ("uvicorn", "uvicorn.error", "httpx", "httpcore", "urllib3", "filelock", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
