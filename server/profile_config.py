"""Options of `headrace profile` that are of nothing else."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileConfig:
    """One profile. `metadata["help"]` is the command line's text."""

    json_path: str | None = dataclasses.field(
        default=None, metadata={"help": "Write a copy of the record to this file."}
    )
    reuse: bool = dataclasses.field(
        default=False, metadata={"help": "Show the record in the cache, and measure only where there is none."}
    )
