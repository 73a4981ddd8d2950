"""One request of a trace, and its line in the canonical JSONL."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from loadgen.traces.trace_error import TraceError

_SEPARATORS = (",", ":")
MAX_TOKENS = 10**8
"""Of a prompt or an answer. More is no request but a broken number; blocks for it would fill the memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request as it was seen, without its text unless `text` holds it. Its id is its line in the file, from 0."""

    t_s: float
    """Seconds from the start of the trace."""
    in_tokens: int
    out_tokens: int
    slo_class: str | None = None
    session: str | None = None
    turn: int = 0
    after: int | None = None
    """The id of the turn whose answer must be there before this one is sent."""
    think_s: float | None = None
    """From that answer to this request."""
    prefix: tuple[int, ...] | None = None
    """Ids of the prompt's blocks, the last one perhaps not full: an equal id means equal tokens up to its end."""
    block: int | None = None
    """Tokens of a block of `prefix`."""
    text: str | None = None

    def check(self) -> None:
        """Raises TraceError: a value is out of its range, or two of them contradict each other."""
        if not (math.isfinite(self.t_s) and self.t_s >= 0.0):
            raise TraceError(f"t is {self.t_s}, it must be finite and at least 0 (seconds from the trace's start)")
        if self.think_s is not None and not (math.isfinite(self.think_s) and self.think_s >= 0.0):
            raise TraceError(f"think_s is {self.think_s}, it must be finite and at least 0 (seconds)")
        for name, value, low in (("in", self.in_tokens, 1), ("out", self.out_tokens, 1), ("turn", self.turn, 0)):
            if value < low:
                raise TraceError(f"{name} is {value}, it must be at least {low}")
            if name != "turn" and value > MAX_TOKENS:
                raise TraceError(f"{name} has {len(str(value))} digits, it must be at most {MAX_TOKENS}")
        if (self.prefix is None) != (self.block is None):
            raise TraceError("prefix and block go together: give both, or null for both")
        if self.prefix is not None and self.block is not None:
            check_blocks(len(self.prefix), self.block, self.in_tokens)

    def with_lengths(self, in_tokens: int, out_tokens: int) -> TraceRequest:
        """The same request with a prompt cut to its first `in_tokens` tokens and an answer of `out_tokens`."""
        prefix = self.prefix
        if prefix is not None and self.block is not None:
            prefix = prefix[: -(-in_tokens // self.block)]
        return dataclasses.replace(self, in_tokens=in_tokens, out_tokens=out_tokens, prefix=prefix)


def check_blocks(num_blocks: int, block_tokens: int, in_tokens: int) -> None:
    """Raises TraceError: so many blocks of this size are not a prompt of `in_tokens` tokens.

    A block size that is not the trace's own would make every prompt too short, or its sharing wrong, in silence.
    """
    if block_tokens < 1:
        raise TraceError(f"block is {block_tokens}, it must be at least 1 token")
    num_needed = -(-in_tokens // block_tokens)
    if num_blocks != num_needed:
        raise TraceError(
            f"{num_blocks} block ids of {block_tokens} tokens are not a prompt of {in_tokens} tokens, which has "
            f"{num_needed} such blocks: the block size is another one"
        )


def encode_request(request: TraceRequest) -> str:
    """One line without its end; the same request is the same text everywhere."""
    body = {
        "t": request.t_s,
        "in": request.in_tokens,
        "out": request.out_tokens,
        "class": request.slo_class,
        "session": request.session,
        "turn": request.turn,
        "after": request.after,
        "think_s": request.think_s,
        "prefix": request.prefix,
        "block": request.block,
        "text": request.text,
    }
    return json.dumps(body, separators=_SEPARATORS)


def decode_request(line: str) -> TraceRequest:
    """The request of a line. Keys that may be null may be left out, and `turn` is 0 then.

    Raises:
        TraceError: the line is not a request of the canonical form.
    """
    try:
        body = json.loads(line)
    except ValueError as error:
        raise TraceError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise TraceError("this is nested too deeply; a request is one flat JSON object") from error
    if not isinstance(body, dict):
        raise TraceError(f"a JSON object is needed, this is a {type(body).__name__}")
    fields = _Fields(body)
    request = TraceRequest(
        t_s=fields.number("t"),
        in_tokens=fields.integer("in"),
        out_tokens=fields.integer("out"),
        slo_class=fields.text("class"),
        session=fields.text("session"),
        turn=fields.integer("turn") if "turn" in body else 0,
        after=fields.optional_integer("after"),
        think_s=None if body.get("think_s") is None else fields.number("think_s"),
        prefix=fields.prefix(),
        block=fields.optional_integer("block"),
        text=fields.text("text"),
    )
    fields.check_all_known()
    request.check()
    return request


class _Fields:
    """The values of one JSON object, each with its type checked."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body
        self._asked: set[str] = {"think_s", "turn"}

    def _get(self, name: str) -> Any:
        self._asked.add(name)
        return self._body.get(name)

    def number(self, name: str) -> float:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TraceError(f"{name} is {value!r}, a number is needed")
        try:
            return float(value)
        except OverflowError as error:
            raise TraceError(f"{name} has {len(str(value))} digits, a finite number is needed") from error

    def integer(self, name: str) -> int:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TraceError(f"{name} is {value!r}, a whole number is needed")
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self._get(name) is None else self.integer(name)

    def text(self, name: str) -> str | None:
        value = self._get(name)
        if value is not None and not isinstance(value, str):
            raise TraceError(f"{name} is {value!r}, a text or null is needed")
        return value

    def prefix(self) -> tuple[int, ...] | None:
        value = self._get("prefix")
        if value is None:
            return None
        if not is_id_list(value):
            raise TraceError("prefix must be a list of whole numbers, or null")
        return tuple(value)

    def check_all_known(self) -> None:
        unknown = sorted(self._body.keys() - self._asked)
        if unknown:
            raise TraceError(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(self._asked))}")


def is_id_list(value: object) -> bool:
    """Whether a JSON value is a list of whole numbers."""
    return isinstance(value, list) and all(type(item) is int for item in value)
