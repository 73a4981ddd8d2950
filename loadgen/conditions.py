"""Under which conditions a load test ran: what one needs to run it again, and to doubt it."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import shlex
from collections.abc import Iterator

from loadgen.config import BenchConfig

_UNKNOWN = "unknown"
_HIDDEN_SUFFIX = "_path"
"""Of a field's name, which its option lacks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Conditions:
    """Of the client; the server tells its own only by its metrics and its model."""

    started_at: str
    """ISO 8601, UTC."""
    command: str
    """That runs the test again; without the key."""
    headrace_version: str
    python_version: str
    system: str
    num_cores: int


def gather_conditions(config: BenchConfig) -> Conditions:
    """Those of now and here."""
    return Conditions(
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=shlex.join(["headrace", "bench", config.url, *_options(config)]),
        headrace_version=_version(),
        python_version=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        num_cores=os.cpu_count() or 1,
    )


def _options(config: BenchConfig) -> Iterator[str]:
    """What differs from its default, as a user would type it. What is not shown in a representation is secret."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "url" or value == field.default or not field.repr:
            continue
        name = "--" + field.metadata.get("option", field.name.removesuffix(_HIDDEN_SUFFIX).replace("_", "-"))
        if isinstance(value, bool):
            yield name if value else name.replace("--", "--no-", 1)
        elif isinstance(value, tuple):
            yield from (word for item in value for word in (name, str(item)))
        else:
            yield from (name, f"{value:g}" if isinstance(value, float) else str(value))


def _version() -> str:
    try:
        return importlib.metadata.version("headrace")
    except importlib.metadata.PackageNotFoundError:
        return _UNKNOWN
