"""A part of the load, with the pattern of the whole."""

from __future__ import annotations

import random

from loadgen.traces.conversations import conversations, keep
from loadgen.traces.derived_trace import derived
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_meta import Transform


def thin(trace: Trace, share: float, seed: int) -> Trace:
    """Keep about `share` of the conversations, each whole or not at all; times stay.

    A request outside of conversations is one of its own. A conversation's fate depends on the seed and its place only.

    Raises:
        TraceError: the share is not above 0 and at most 1, or no request is left.
    """
    if not 0.0 < share <= 1.0:
        raise TraceError(f"the share to keep is {share}, it must be above 0 and at most 1")
    roots = conversations(trace.requests)
    rng = random.Random(seed)
    fates = {root: rng.random() < share for root in dict.fromkeys(roots)}
    kept = keep(trace.requests, [fates[root] for root in roots])
    details: dict[str, int | float | str] = {
        "share": share,
        "conversations": len(fates),
        "kept": sum(fates.values()),
        "seed": seed,
    }
    return derived(trace, kept.requests, Transform("thin", details), "thinned", seed)
