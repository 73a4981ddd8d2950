"""Bodies that are too large or too slow, with a known length and in chunks."""

from __future__ import annotations

import asyncio

import pytest

from tests.asgi_calls import Answer, call, http_scope, part
from tests.http_harness import Harness, error_of, run

CHAT = "/v1/chat/completions"
LIMIT = 1024


def _post(h: Harness, *parts: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> asyncio.Task[Answer]:
    messages = [part(data, more=index < len(parts) - 1) for index, data in enumerate(parts)]
    return asyncio.ensure_future(call(h.app, http_scope(CHAT, "POST", headers), messages))


def test_known_length_over_the_limit_is_refused_without_reading() -> None:
    async def body(h: Harness) -> None:
        for length, closes in ((b"1025", False), (b"16384", False), (b"16385", True), (b"9" * 40, True)):
            answer = await _post(h, b"{}", headers=((b"content-length", length),))
            assert answer.status == 413 and answer.num_received == 0
            assert answer.error["code"] == "body_too_large"
            assert (answer.headers.get("connection") == "close") == closes

    run(body, max_body_bytes=LIMIT)


def test_chunked_body_over_the_limit_is_refused_at_the_limit() -> None:
    async def body(h: Harness) -> None:
        answer = await _post(h, *[b"x" * 512] * 100)
        assert answer.status == 413 and answer.num_received == 3
        assert answer.headers["connection"] == "close"

    run(body, max_body_bytes=LIMIT)


def test_body_at_the_limit_is_read() -> None:
    async def body(h: Harness) -> None:
        raw = b'{"messages": [{"role": "user", "content": "a"}]}'.ljust(LIMIT)
        response = await h.client.post(CHAT, content=raw, headers={"content-type": "application/json"})
        assert response.status_code == 200
        assert error_of(await h.client.post(CHAT, content=raw + b" "), 413)["code"] == "body_too_large"

    run(body, max_body_bytes=LIMIT)


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"", b"0x10"])
def test_length_that_is_no_number_is_refused(length: bytes) -> None:
    async def body(h: Harness) -> None:
        answer = await _post(h, b"{}", headers=((b"content-length", length),))
        assert answer.status == 400 and answer.error["param"] == "content-length"

    run(body)


def test_body_that_stops_coming_is_a_408() -> None:
    async def body(h: Harness) -> None:
        answer = await call(h.app, http_scope(CHAT, "POST"), [part(b"{", more=True)])
        assert answer.status == 408 and answer.error["code"] == "body_timeout"
        assert answer.headers["connection"] == "close"

    run(body, body_timeout_s=0.1)


def test_time_limit_is_of_the_body_not_of_the_answer() -> None:
    async def body(h: Harness) -> None:
        h.engine.script.holds_after = 1
        waiting = asyncio.ensure_future(h.chat())
        await h.engine.is_holding.wait()
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        h.engine.release()
        assert (await waiting).status_code == 200

    run(body, body_timeout_s=0.1)


def test_body_of_a_get_is_ignored() -> None:
    async def body(h: Harness) -> None:
        response = await h.client.request("GET", "/health", content=b"x" * 100)
        assert response.status_code == 200

    run(body)
