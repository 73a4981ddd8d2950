"""Texts of conversations, as the common ways to write them keep them."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""ShareGPT's names."""


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One turn's text; equal messages are equal tokens."""

    role: str
    text: str


def messages_of(value: object) -> list[Message]:
    """Messages of a JSON list, or of a text that holds one. What is no message is left out.

    Read are `{"from", "value"}` (ShareGPT), `{"role", "content"}` (OpenAI; content may be a list of parts), and
    `{"role", "parts"}` (OpenTelemetry's conventions).
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    if not isinstance(value, list):
        return []
    return [_message(item) for item in value if isinstance(item, dict)]


def _message(item: dict[str, Any]) -> Message:
    role = str(item.get("role") or item.get("from") or "")
    content = next((item[name] for name in ("content", "value", "parts") if item.get(name) is not None), "")
    return Message(_ROLES.get(role, role), _text(content))


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = (part.get("text") or part.get("content") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def num_chars(messages: list[Message]) -> int:
    """Of their texts."""
    return sum(len(message.text) for message in messages)


def joined(messages: list[Message]) -> str:
    """The texts as one prompt; the form of a chat template is the server's business."""
    return "\n".join(message.text for message in messages)


def estimated_tokens(chars: int, chars_per_token: float) -> int:
    """Tokens of a text of so many characters, rounded up; 0 for none."""
    return math.ceil(chars / chars_per_token)
