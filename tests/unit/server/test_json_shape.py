"""The look at large bodies: exact for JSON, linear for anything."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server import json_shape
from server.json_shape import JsonTooComplex, check_json_shape

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def _containers(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(_containers(item) for item in value.values())
    return 1 + sum(_containers(item) for item in value) if isinstance(value, list) else 0


@settings(max_examples=150, deadline=None)
@given(value=_VALUES, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_containers_are_counted_exactly(value: Any, ascii_only: bool, indent: int | None) -> None:
    """Brackets and quotes inside strings are not containers."""
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    num_containers = _containers(value)
    limit, json_shape.MAX_CONTAINERS = json_shape.MAX_CONTAINERS, num_containers
    try:
        check_json_shape(raw)
        if num_containers:
            json_shape.MAX_CONTAINERS = num_containers - 1
            with pytest.raises(JsonTooComplex):
                check_json_shape(raw)
    finally:
        json_shape.MAX_CONTAINERS = limit


@pytest.mark.parametrize(
    "raw",
    [b'"' + b'\\"' * 500_000, b"\\" * 1_000_000, b'"a"' + b" " * 1_000_000, b'{"a":' * 10 + b"1" * 1_000_000],
    ids=["open string", "backslashes", "white space", "digits"],
)
@pytest.mark.parametrize("tail", [b"", b"," * 1_500_001], ids=["simple", "not simple"])
def test_malformed_text_takes_linear_time(raw: bytes, tail: bytes) -> None:
    """A quadratic scan of a megabyte would run into the test's time limit."""
    with contextlib.suppress(JsonTooComplex):
        check_json_shape(raw + tail)


@pytest.mark.parametrize(
    "raw", [b"[]," * 20_001, b'{"k":1,' * 20_001, b'"k":1,' * 60_001, b'"",' * 200_001, b"1," * 1_500_001]
)
def test_each_limit_is_a_limit(raw: bytes) -> None:
    with pytest.raises(JsonTooComplex, match="at most 20000 lists and objects, 60000 keys"):
        check_json_shape(raw)


def test_long_prompt_of_token_ids_and_long_text_pass() -> None:
    check_json_shape(b'{"prompt": [' + b"12345," * 600_000 + b"1]}")
    check_json_shape(json.dumps({"messages": [{"role": "user", "content": '[{"a": "b"}], ' * 200_000}]}).encode())
