"""A cheap look at a large JSON body before anything is built from it.

Parsing holds the interpreter's lock for as long as it takes to build the objects. A few megabytes of text are built in
a millisecond, the same bytes as a million empty lists in half a second, during which every stream stands still. Real
requests have few containers, so the number of them is bounded first, by a scan that lets other threads in.
"""

from __future__ import annotations

import re

MAX_CONTAINERS = 20_000
MAX_KEYS = 60_000
MAX_STRINGS = 200_000
"""Keys and values together."""
MAX_VALUES = 1_500_000
_TOKEN = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"?(?P<key>\s*+:)?'  # a string, or a key; without its closing quote it reaches to the end
    rb"|(?P<open>[\[{])"
    rb"|(?P<plain>[^\"\[{]++)",  # numbers, commas and what closes
    re.DOTALL,
)


class JsonTooComplex(ValueError):
    """More containers, keys or values than any real request has; the message names the limit."""


def check_json_shape(raw: bytes) -> None:
    """Pass over a body once, without building anything from it; malformed JSON passes and fails in the parser.

    Raises:
        JsonTooComplex: it holds too many objects and lists, keys, or values.
    """
    if _is_surely_simple(raw):
        return
    num_containers = num_keys = num_strings = num_values = 0
    for match in _TOKEN.finditer(raw):
        if match.lastgroup == "open":
            num_containers += 1
        elif match.lastgroup == "plain":
            num_values += raw.count(b",", match.start(), match.end())
        else:
            num_strings += 1
            num_keys += match.lastgroup == "key"
        if (
            num_containers > MAX_CONTAINERS
            or num_keys > MAX_KEYS
            or num_strings > MAX_STRINGS
            or num_values > MAX_VALUES
        ):
            raise JsonTooComplex(
                f"the body is too complex: at most {MAX_CONTAINERS} lists and objects, {MAX_KEYS} keys, "
                f"{MAX_STRINGS} strings and {MAX_VALUES} values are accepted"
            )


def _is_surely_simple(raw: bytes) -> bool:
    """Whether there are so few brackets, colons, quotes and commas that no limit is broken, even if none is in a text.

    A quick look that spares ordinary large bodies, which are mostly text, the slow one.
    """
    return (
        raw.count(b"[") + raw.count(b"{") <= MAX_CONTAINERS
        and raw.count(b":") <= MAX_KEYS
        and raw.count(b'"') <= MAX_STRINGS
        and raw.count(b",") <= MAX_VALUES
    )
