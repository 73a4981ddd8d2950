"""Our exceptions as HTTP responses in OpenAI's shape.

429 means that this client's class has no room or could not be in time now, 503 that the server has no room: it is full,
draining, or its engine is away.
Both say when to come back. A failure that the same request would meet again says `x-should-retry: false`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from engine.errors import EngineDied, EngineError, EngineUnavailable, GroupAborted, GroupRefusedError, SlowConsumer
from engine.messages import GroupRefused
from scheduler.output import RefusalReason
from server.chat import TemplateError
from server.slo_request import InvalidSLO
from server.text_worker import TextOverloaded, TextTimeout

DEFAULT_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 100.0
"""The official client ignores a Retry-After of more than two minutes and then does not retry at all."""
JSON_MEDIA_TYPE = "application/json"
ENGINE_DIED = "the engine stopped while it answered; it is being restarted: retry in a few seconds"


class ApiError(Exception):
    """An answer that is not 2xx.

    `retry_after_s` sets `retry-after` and `retry-after-ms`; `should_retry` sets the header of that name.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry
        self.extra_headers = dict(headers or {})

    def body(self) -> dict[str, dict[str, str | None]]:
        """The error object, as a response's body or as an event of a stream."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        headers = {"content-type": JSON_MEDIA_TYPE, **self.extra_headers}
        if self.retry_after_s is not None:
            seconds = min(max(self.retry_after_s, 0.001), MAX_RETRY_AFTER_S)
            headers["retry-after"] = str(math.ceil(seconds))
            headers["retry-after-ms"] = str(math.ceil(seconds * 1000.0))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers

    def encoded_body(self) -> bytes:
        return msgspec.json.encode(self.body())


def invalid_request(message: str, param: str | None = None, code: str | None = "invalid_value") -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, kind="invalid_request_error", param=param, code=code)


def unsupported(what: str, param: str) -> ApiError:
    """400: valid elsewhere, not offered here."""
    return invalid_request(f"{what} is not supported by this version of Headrace: leave it out", param, "unsupported")


def context_length_exceeded(message: str, param: str | None = None) -> ApiError:
    return invalid_request(message, param, "context_length_exceeded")


def model_not_found(model: str, served: str) -> ApiError:
    return ApiError(
        404,
        f"The model {shortened(model)!r} does not exist here; the served model is {served!r}",
        kind="not_found_error",
        param="model",
        code="model_not_found",
    )


def unauthorized(message: str) -> ApiError:
    return ApiError(
        401,
        message,
        kind="authentication_error",
        code="invalid_api_key",
        headers={"www-authenticate": 'Bearer realm="headrace"'},
    )


def rate_limited(message: str, code: str, retry_after_s: float | None = None) -> ApiError:
    """429: the class asked for has no room, or would be late."""
    return ApiError(
        429, message, kind="rate_limit_error", code=code, retry_after_s=retry_after_s or DEFAULT_RETRY_AFTER_S
    )


def overloaded(message: str, code: str, retry_after_s: float | None = None) -> ApiError:
    """503: the server has no room, or no engine, at the moment."""
    return ApiError(
        503, message, kind="server_overloaded", code=code, retry_after_s=retry_after_s or DEFAULT_RETRY_AFTER_S
    )


def draining() -> ApiError:
    """503: the server is about to end. The connection is closed, so that a retry goes elsewhere."""
    error = overloaded("the server is shutting down and takes no new requests: retry on another one", "draining")
    error.extra_headers["connection"] = "close"
    return error


def cut_short() -> ApiError:
    """503: a request that still ran when the time of the drain was over."""
    error = overloaded("the server is shutting down: this answer was cut short, retry on another one", "draining")
    error.extra_headers["connection"] = "close"
    return error


def server_error(message: str, code: str = "internal_error", should_retry: bool | None = False) -> ApiError:
    """500: our fault. Nothing of the inside is told."""
    return ApiError(500, message, kind="server_error", code=code, should_retry=should_retry)


def shortened(text: str, max_chars: int = 200) -> str:
    """What a client sent, short enough to be sent back."""
    return text if len(text) <= max_chars else text[:max_chars] + "..."


def refused_error(refused: GroupRefused) -> ApiError:
    """The scheduler's refusal of a group, or its expiry in the queue."""
    if refused.reason == RefusalReason.NEVER_FITS.value:
        return context_length_exceeded(refused.message)
    if refused.reason in (RefusalReason.CLASS_QUEUE_FULL.value, RefusalReason.SLO_UNATTAINABLE.value):
        return rate_limited(refused.message, refused.reason, refused.retry_after_s)
    if refused.reason == RefusalReason.CLASS_CLOSED.value:
        return ApiError(429, refused.message, kind="rate_limit_error", code=refused.reason, should_retry=False)
    if refused.reason == RefusalReason.DRAINING.value:
        return draining()
    return overloaded(refused.message, refused.reason, refused.retry_after_s)


def api_error(error: Exception) -> ApiError | None:
    """The answer to one of our exceptions; None: not one of them, which makes it a bug."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, GroupRefusedError):
        return refused_error(error.refused)
    if isinstance(error, EngineUnavailable):
        return overloaded(str(error), "engine_unavailable")
    if isinstance(error, EngineDied):
        return overloaded(ENGINE_DIED, "engine_died")  # how it ended is for the log
    if isinstance(error, SlowConsumer):
        return ApiError(408, str(error), kind="invalid_request_error", code="slow_client")
    if isinstance(error, GroupAborted):
        return overloaded(str(error), "aborted")
    if isinstance(error, EngineError):
        return server_error("the engine failed on this request", "engine_error")
    if isinstance(error, InvalidSLO):
        return invalid_request(error.message, error.param)
    if isinstance(error, TextOverloaded):
        return overloaded(str(error), "server_full")
    if isinstance(error, TextTimeout):
        return overloaded(str(error), "text_timeout")
    if isinstance(error, TemplateError):
        return invalid_request(str(error), error.param, "invalid_messages")
    return None
