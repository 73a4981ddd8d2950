"""Requests as the time budget of a step sees them: running, with a context and deadlines."""

from __future__ import annotations

from scheduler.request import Request
from scheduler.token_deadlines import TokenDeadlines
from tests.scheduler_builders import make_request

ENDLESS = 10**6


def make_decode(
    name: str,
    *,
    context: int = 100,
    due_s: float = 1.0,
    tpot_s: float = 0.05,
    is_protected: bool = True,
    is_lost: bool = False,
) -> Request:
    """A request that lacks one token, due at `due_s`, after a first one on time."""
    deadlines = TokenDeadlines(due_s - tpot_s, tpot_s, None, 0.0)
    deadlines.emitted(due_s - tpot_s)
    assert abs(deadlines.next_s - due_s) < 1e-9
    deadlines.next_s = due_s
    deadlines.is_lost = is_lost
    request = _request(name, context, ENDLESS, deadlines, is_protected=is_protected)
    request.num_computed_tokens = context
    request.num_output_tokens = 1
    return request


def make_prefill(name: str, num_prompt_tokens: int, *, num_computed_tokens: int = 0, max_tokens: int = 10) -> Request:
    """A request with a prompt of which so much is computed."""
    deadlines = TokenDeadlines(10.0, 0.05, None, 0.0)
    request = _request(name, num_prompt_tokens, max_tokens, deadlines, is_protected=True)
    request.num_computed_tokens = num_computed_tokens
    return request


def _request(
    name: str, num_prompt_tokens: int, max_tokens: int, deadlines: TokenDeadlines, *, is_protected: bool
) -> Request:
    request = make_request(name, num_prompt_tokens, max_tokens)
    request.is_protected, request.deadlines = is_protected, deadlines
    return request
