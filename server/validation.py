"""What is wrong with a body, told in bounded words: no echo of a large input, no internal names, no paths.

At most `MAX_ERRORS` mistakes are reported; what the client sent is echoed only where it is a short plain value. The
policy is vLLM's, whose servers once answered a small request with a very large error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.errors import ApiError, invalid_request, shortened
from server.protocol.chat import ChatMessage, ChatRequest, ContentPart, FunctionCall, ToolCall
from server.protocol.common import StreamOptions
from server.protocol.completions import CompletionRequest
from server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

MAX_ERRORS = 10
MAX_ECHO_CHARS = 200
MAX_ERROR_CHARS = 1000
_BODIES = (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)
_PARTS = (ChatMessage, ContentPart, ToolCall, FunctionCall, StreamOptions)
_FIELDS = frozenset(name for model in (*_BODIES, *_PARTS) for name in model.model_fields)
_CODES = {
    "missing": "missing_required_parameter",
    "unsupported": "unsupported_parameter",
    "json_invalid": "invalid_json",
}


def invalid_body(details: Sequence[Mapping[str, Any]]) -> ApiError:
    """The 400 for pydantic's error details; the first one gives `param` and `code`."""
    details = _without_other_forms(details[: 4 * MAX_ERRORS])
    texts = list(dict.fromkeys(_describe(detail) for detail in details[:MAX_ERRORS]))
    if len(details) > MAX_ERRORS:
        texts.append(f"and {len(details) - MAX_ERRORS} more")
    first = details[0]
    kind = str(first["type"])
    code = _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    return invalid_request("; ".join(texts), _param(first), code)


def _without_other_forms(details: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Where a value may have several forms, the one that fits best is told: the mistake that lies deepest."""
    paths = [_param(detail) or "" for detail in details]
    return [
        detail
        for detail, path in zip(details, paths, strict=True)
        if not any(other.startswith((f"{path}[", f"{path}.")) for other in paths)
    ]


def _describe(detail: Mapping[str, Any]) -> str:
    param = _param(detail)
    text = str(detail["msg"])
    if param and not text.startswith(f"{param} "):  # some messages begin with the name
        text = f"{param}: {text}"
    return shortened(text + _echo(detail), MAX_ERROR_CHARS)


def _param(detail: Mapping[str, Any]) -> str | None:
    """The path of the field, such as messages[0].content, without pydantic's marks of unions."""
    named = detail.get("ctx", {}).get("param")
    if named is not None:
        return str(named)
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in _FIELDS:
            path += f".{part}" if path else part
    return path or None


def _echo(detail: Mapping[str, Any]) -> str:
    value = detail.get("input")
    if detail["type"] in ("missing", "json_invalid") or isinstance(value, list | dict | bytes) or value is None:
        return ""
    text = repr(shortened(value, MAX_ECHO_CHARS)) if isinstance(value, str) else shortened(repr(value), MAX_ECHO_CHARS)
    return f" (got {text})"
