"""What must hold of one step's composition, from its record and what was known before it."""

from __future__ import annotations

from collections.abc import Collection

from scheduler.config import PolicyName
from scheduler.output import SchedulerOutput

ROUNDING_S = 1e-9
LONGER = frozenset({"over_budget", "least_prefill", "share_reserved"})
"""Why a step with prefill may take longer than its budget."""
WITHOUT = frozenset({"decode_skipped", "no_block_for_decode"})
"""Why a running request may be left without its next token."""


def check_time(output: SchedulerOutput) -> None:
    """A step is expected to end within its budget, but for single tokens alone and for a reason that is told."""
    if output.predicted_s is None or output.budget_s is None:
        return
    if output.predicted_s <= output.budget_s + ROUNDING_S or LONGER & set(output.reasons):
        return
    assert all(s.num_tokens == 1 for s in output.scheduled), f"prefill beyond the budget: {output}"


def check_decodes(output: SchedulerOutput, ready: Collection[str], policy: PolicyName, *, is_predicted: bool) -> None:
    """Whoever lacks one token gets it in every step, but for a reason that is told.

    Args:
        ready: running requests that lacked one token when the step was scheduled, and were not preempted in it.
    """
    reasons = set(output.reasons)
    if "decode_skipped" in reasons:
        assert policy == "deadline" and is_predicted, "a decode is skipped where nothing is known of times"
    left_out = set(ready) - {s.request_id for s in output.scheduled}
    assert not left_out or WITHOUT & reasons, f"{left_out} wait for a token: {output.reasons}"
    if left_out and "no_block_for_decode" not in reasons:
        assert len(left_out) < len(ready), "all decodes are skipped"
