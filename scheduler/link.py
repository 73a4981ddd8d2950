"""What the scheduler knows of the link between device and host, taken once a step."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class LinkSnapshot:
    """The state of the link at the start of a step. Empty until weights or blocks are streamed."""


NO_LINK = LinkSnapshot()
