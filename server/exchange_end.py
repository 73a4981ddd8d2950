"""How a request that was not answered in full counts."""

from __future__ import annotations

from engine.errors import EngineDied, GroupRefusedError, SlowConsumer
from scheduler.output import RefusalReason
from server.errors import api_error
from server.interruption import ClientLeft, ServerEnds
from server.request_record import End

CONTEXT_LENGTH = "context_length"


def is_clients_mistake(error: Exception | None) -> bool:
    """A 4xx that no server could have answered otherwise. A prompt that is too long for this one is a refusal."""
    answer = None if error is None else api_error(error)
    return answer is not None and answer.status in (400, 404) and answer.code != "context_length_exceeded"


def end_of(error: Exception) -> tuple[End, str]:
    """The end and a short reason, of the metrics' own small set."""
    if isinstance(error, ClientLeft):
        return End.CANCELLED, "client_left"
    if isinstance(error, SlowConsumer):
        return End.CANCELLED, "slow_client"
    if isinstance(error, ServerEnds):
        return End.FAILED, "draining"
    if isinstance(error, EngineDied):
        return End.FAILED, "engine_died"
    if isinstance(error, GroupRefusedError):
        is_expired = error.refused.reason == RefusalReason.EXPIRED.value
        return (End.EXPIRED if is_expired else End.REFUSED), error.refused.reason
    answer = api_error(error)
    if answer is None or answer.status == 500 or answer.code == "aborted":
        return End.FAILED, "internal_error" if answer is None else answer.code or "internal_error"
    if answer.code == "context_length_exceeded":
        return End.REFUSED, CONTEXT_LENGTH
    return End.REFUSED, answer.code or "invalid"
