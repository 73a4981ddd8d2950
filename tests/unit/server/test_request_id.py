"""x-request-id: on every response, a client's own only if it is harmless."""

from __future__ import annotations

import asyncio

import pytest

from server.request_id import MAX_CHARS, accept_request_id, make_request_id
from tests.http_harness import Harness, run


@pytest.mark.parametrize("value", ["a", "A-1_b.c:d", "x" * MAX_CHARS])
def test_plain_id_is_echoed(value: str) -> None:
    async def body(h: Harness) -> None:
        for path in ("/health", "/nope", "/v1/models/none"):
            assert (await h.client.get(path, headers={"x-request-id": value})).headers["x-request-id"] == value

    run(body)


ODD = (b"", b"x" * 129, b"x" * 100_000, b"a b", b"a\r\nb", b"a\x1b[31m", b"\xc3\xa9", b"a,b")


@pytest.mark.parametrize("values", [[], [b"a", b"b"], *([value] for value in ODD)])
def test_other_ids_are_not_used(values: list[bytes]) -> None:
    """Case 7, and forged log lines."""
    assert accept_request_id(values) is None
    made = make_request_id()
    assert accept_request_id([made.encode()]) == made


def test_two_requests_with_one_id_both_finish_under_ids_of_ours() -> None:
    """Case 6."""

    async def body(h: Harness) -> None:
        message = {"role": "user", "content": "hi"}
        request = {"json": {"messages": [message]}, "headers": {"x-request-id": "same"}}
        responses = await asyncio.gather(*(h.client.post("/v1/chat/completions", **request) for _ in range(3)))
        assert [response.status_code for response in responses] == [200] * 3
        assert {response.headers["x-request-id"] for response in responses} == {"same"}
        assert len({group.group_id for group in h.engine.groups}) == 3
        assert len({response.json()["id"] for response in responses}) == 3

    run(body)


def test_large_id_is_in_no_chunk() -> None:
    async def body(h: Harness) -> None:
        message = {"role": "user", "content": "hi"}
        response = await h.client.post(
            "/v1/chat/completions",
            json={"messages": [message], "stream": True},
            headers={"x-request-id": "y" * 100_000},
        )
        assert response.status_code == 200
        assert "yyyy" not in response.text and len(response.headers["x-request-id"]) <= MAX_CHARS

    run(body)
