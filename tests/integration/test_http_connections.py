"""Real connections to a real server with a scripted engine: clients that leave, drip, flood or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from server import answer_sender, http_protocol
from tests.http_harness import DEADLINE_S, Harness, events_of, harness, listening, until

USER = {"role": "user", "content": "hi"}
Test = Callable[[Harness, "Network"], Awaitable[None]]


def _serve(test: Test, **options: Any) -> None:
    """Run a test body against a server of its own, and check that nothing is left over."""

    async def body() -> None:
        async with harness(**options) as made:
            async with asyncio.timeout(2 * DEADLINE_S), listening(made) as (url, _), Network(url) as network:
                await test(made, network)
                await until(lambda: made.service.lifecycle.num_live == 0, "live requests to end", 1.5)
            made.check()

    asyncio.run(body())


class RawClient:
    """One TCP connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def post(self, path: str, body: dict[str, Any], headers: str = "") -> None:
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}"
        await self.send(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)

    async def read_until(self, marker: bytes) -> bytes:
        return await self.reader.readuntil(marker)

    async def read_all(self) -> bytes:
        return await self.reader.read()

    def abort(self) -> None:
        self.writer.transport.abort()


class Network:
    """The way to the server; closes its connections."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[RawClient] = []

    async def __aenter__(self) -> Network:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            client.writer.close()
        for client in self._clients:
            with contextlib.suppress(ConnectionError):
                await client.writer.wait_closed()

    async def connect(self) -> RawClient:
        host, port = self._url.removeprefix("http://").split(":")
        self._clients.append(RawClient(*await asyncio.open_connection(host, int(port))))
        return self._clients[-1]

    async def is_healthy(self) -> bool:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{self._url}/health")).status_code == 200


@pytest.mark.parametrize("n", [1, 4])
def test_closed_stream_aborts_all_its_choices_within_a_second(n: int) -> None:
    """Cases 1 and 2."""

    async def body(h: Harness, network: Network) -> None:
        h.engine.script.holds_after = 3
        client = await network.connect()
        request = {"messages": [USER], "stream": True, "n": n, "ignore_eos": True, "max_tokens": 200}
        await client.post("/v1/chat/completions", request)
        await client.read_until(b'"content":"')
        await h.engine.is_holding.wait()
        client.abort()
        await until(lambda: not h.engine.live, "the engine to be told", 1.0)
        assert h.engine.aborts[-1].choices is None
        assert h.outcomes() == {"offered": 1, "cancelled": 1}

    _serve(body)


@pytest.mark.parametrize("state", ["running", "queued"])
@pytest.mark.parametrize("stream", [False, True])
def test_client_that_leaves_is_noticed_whether_it_streams_or_waits(state: str, stream: bool) -> None:
    """Case 4: a request that is not streamed, running or in the queue."""

    async def body(h: Harness, network: Network) -> None:
        h.engine.script.admits = state == "running"
        h.engine.script.holds_after = 0
        client = await network.connect()
        await client.post("/v1/chat/completions", {"messages": [USER], "stream": stream})
        await until(lambda: bool(h.engine.live), "the engine to have it")
        client.abort()
        await until(lambda: not h.engine.live, "the engine to be told", 1.0)
        assert h.outcomes() == {"offered": 1, "cancelled": 1}

    _serve(body)


def test_client_that_leaves_while_its_prompt_is_tokenized_never_reaches_the_engine() -> None:
    async def body(h: Harness, network: Network) -> None:
        started, go = asyncio.Event(), asyncio.Event()

        async def slow(*_: Any, **__: Any) -> list[int]:
            started.set()
            await go.wait()
            return [9]

        h.service.text.encode = slow  # type: ignore[method-assign]
        client = await network.connect()
        await client.post("/v1/completions", {"prompt": "a"})
        await started.wait()
        client.abort()
        await until(lambda: h.service.lifecycle.num_live == 0, "the request to end", 1.0)
        go.set()
        assert not h.engine.groups
        assert h.outcomes() == {"offered": 1, "cancelled": 1}

    _serve(body)


def test_abort_of_one_request_leaves_the_others_alone() -> None:
    """Case 5: ids that begin alike, here by the clients' own request ids."""

    async def body(h: Harness, network: Network) -> None:
        h.engine.script.holds_after = 2
        clients = {}
        for name in ("r1", "r10", "r11"):
            clients[name] = await network.connect()
            await clients[name].post(
                "/v1/chat/completions",
                {"messages": [USER], "stream": True},
                f"x-request-id: {name}\r\nconnection: close\r\n",
            )
        await until(lambda: len(h.engine.live) == 3, "three live groups")
        clients["r1"].abort()
        await until(lambda: len(h.engine.live) == 2, "one group to be gone", 1.0)
        h.engine.release()
        for name in ("r10", "r11"):
            assert b"[DONE]" in await clients[name].read_all()
        assert h.outcomes() == {"offered": 3, "met": 2, "cancelled": 1}

    _serve(body)


def test_killed_clients_leave_nothing_behind() -> None:
    """Case 8."""

    async def body(h: Harness, network: Network) -> None:
        h.engine.script.holds_after = 0

        async def killed() -> None:
            client = await network.connect()
            await client.post("/v1/chat/completions", {"messages": [USER], "stream": True})
            await client.read_until(b"\r\n\r\n")
            client.abort()

        for _ in range(20):
            await asyncio.gather(*(killed() for _ in range(15)))
        await until(lambda: not h.engine.live, "the engine to be told")
        await until(lambda: h.service.ledger.num_live == 0, "the requests to end")
        assert h.engine.engine.num_open_groups == 0
        assert h.outcomes() == {"offered": 300, "cancelled": 300}

    _serve(body)


def test_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pending tokens are bounded by the engine's client; the wait for its socket is bounded here."""
    monkeypatch.setattr(answer_sender, "WRITE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(answer_sender, "LAST_WRITE_TIMEOUT_S", 0.1)

    async def body(h: Harness, network: Network) -> None:
        h.engine.script.tokens_per_delta = 2000
        client = await network.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = {"messages": [USER], "stream": True, "ignore_eos": True, "logprobs": True, "top_logprobs": 5}
        await client.post("/v1/chat/completions", request | {"max_tokens": 60_000})
        await until(lambda: h.service.ledger.num_live == 0 and bool(h.engine.groups), "the stream to be cut off")
        assert h.outcomes() == {"offered": 1, "cancelled": 1}
        assert not h.engine.live
        client.abort()

    _serve(body, max_model_len=100_000)


def test_head_that_is_too_large_is_refused_and_the_server_lives_on() -> None:
    """A 64 MB header, ten thousand headers, and a very long URL."""

    async def body(h: Harness, network: Network) -> None:
        client = await network.connect()
        await client.send(b"GET /health HTTP/1.1\r\nhost: x\r\nx-big: ")
        received = b""
        for _ in range(1024):
            try:
                await client.send(b"a" * 65536)
            except ConnectionError:
                break
        else:
            raise AssertionError("64 MB of a header were taken")
        many = await network.connect()
        await many.send(b"GET /health HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % i for i in range(10_000)) + b"\r\n")
        received = await many.read_all()
        assert re.match(rb"HTTP/1.1 4(00|31) ", received)
        path = await network.connect()
        await path.send(b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not await _ended_with_success(path)
        assert await network.is_healthy()

    _serve(body)


async def _ended_with_success(client: RawClient) -> bool:
    try:
        return (await client.read_all()).startswith(b"HTTP/1.1 2")
    except ConnectionError:
        return False


def test_head_just_over_the_limit_gets_a_431() -> None:
    async def body(h: Harness, network: Network) -> None:
        client = await network.connect()
        await client.send(b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: " + b"a" * 100)
        await client.send(b"b" * (http_protocol.MAX_HEAD_BYTES + 1))
        answer = await client.read_all()
        assert answer.startswith(b"HTTP/1.1 431 ") and b'"code":"headers_too_large"' in answer
        ordinary = await network.connect()
        await ordinary.send(
            b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-a: " + b"a" * 30_000 + b"\r\n\r\n"
        )
        assert (await ordinary.read_all()).startswith(b"HTTP/1.1 200 ")

    _serve(body)


def test_head_that_drips_is_cut_off_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred slow connections."""
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.3)

    async def body(h: Harness, network: Network) -> None:
        clients = [await network.connect() for _ in range(100)]
        for client in clients:
            await client.send(b"GET /health HTTP/1.1\r\nho")
        assert await network.is_healthy()
        assert await asyncio.gather(*(client.read_all() for client in clients)) == [b""] * 100

    _serve(body)


def test_body_that_drips_gets_a_408_and_the_connection_closes() -> None:
    async def body(h: Harness, network: Network) -> None:
        client = await network.connect()
        await client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert await network.is_healthy()
        answer = await client.read_all()
        assert (
            answer.startswith(b"HTTP/1.1 408 ") and b"body_timeout" in answer and b"connection: close" in answer.lower()
        )

    _serve(body, body_timeout_s=0.2)


def test_gigabyte_is_refused_before_it_is_sent() -> None:
    async def body(h: Harness, network: Network) -> None:
        client = await network.connect()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n"
        await client.send(head + b"expect: 100-continue\r\n\r\n")
        answer = await client.read_all()
        assert answer.startswith(b"HTTP/1.1 413 ") and b"100 Continue" not in answer

    _serve(body)


def test_body_somewhat_over_the_limit_is_thrown_away_and_its_sender_reads_the_413() -> None:
    async def body(h: Harness, network: Network) -> None:
        client = await network.connect()
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1_000_000
        )
        assert b"413" in await client.read_until(b"\r\n\r\n")
        await client.read_until(b"}}")
        await client.send(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await client.read_all()).startswith(b"HTTP/1.1 200 ")

    _serve(body, max_body_bytes=65536)


def test_endless_chunks_are_refused_at_the_limit() -> None:
    async def body(h: Harness, network: Network) -> None:
        client = await network.connect()
        await client.send(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        answer = asyncio.ensure_future(client.reader.readuntil(b"\r\n"))
        for _ in range(1000):
            if answer.done():
                break
            try:
                await client.send(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            except ConnectionError:
                break
            await asyncio.sleep(0)
        assert (await answer).startswith(b"HTTP/1.1 413 ")

    _serve(body, max_body_bytes=65536)


def test_old_pipelined_and_hesitant_clients_are_served() -> None:
    async def body(h: Harness, network: Network) -> None:
        old = await network.connect()
        await old.send(b"GET /health HTTP/1.0\r\n\r\n")
        assert (await old.read_all()).startswith(b"HTTP/1.1 200 ")
        pipelined = await network.connect()
        await pipelined.send(
            b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answers = await pipelined.read_all()
        assert answers.count(b"HTTP/1.1 200 ") == 2 and answers.index(b"alive") < answers.index(b"1.2.3")
        hesitant = await network.connect()
        raw = b'{"prompt": "a"}'
        await hesitant.send(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(raw)
        )
        assert await hesitant.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await hesitant.send(raw)
        assert (await hesitant.read_all()).startswith(b"HTTP/1.1 200 ")

    _serve(body)


def test_signal_drains_and_ends_the_server_with_the_socket_open_meanwhile() -> None:
    """Case 11: three running ones finish, a new one gets 503, then the server ends by itself."""

    async def body() -> None:
        async with harness() as h, asyncio.timeout(DEADLINE_S), listening(h) as (url, server):
            h.engine.script.holds_after = 2
            async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
                request = {"messages": [USER], "stream": True}
                running = [asyncio.ensure_future(client.post("/v1/chat/completions", json=request)) for _ in range(3)]
                await until(lambda: len(h.engine.live) == 3, "three running requests")
                server.handle_exit(signal.SIGTERM, None)
                assert (await client.get("/readyz")).status_code == 503
                for size in (1, 3_000_000):  # also one that is still being sent when the answer is clear
                    refused = await client.post("/v1/chat/completions", json=request | {"user": "u" * size})
                    assert refused.status_code == 503 and refused.headers["connection"] == "close"
                h.engine.release()
                for response in await asyncio.gather(*running):
                    assert events_of(response)[-1]["choices"][0]["finish_reason"] == "stop"
            await until(lambda: server.should_exit, "the drain to end")
            h.check()
            assert h.outcomes() == {"offered": 3, "met": 3}

    asyncio.run(body())


def test_second_signal_ends_what_still_runs_with_an_error_event() -> None:
    async def body() -> None:
        async with harness() as h, asyncio.timeout(DEADLINE_S), listening(h, drain_timeout_s=600.0) as (url, server):
            h.engine.script.holds_after = 2
            async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
                request = {"messages": [USER], "stream": True}
                running = asyncio.ensure_future(client.post("/v1/chat/completions", json=request))
                await h.engine.is_holding.wait()
                server.handle_exit(signal.SIGTERM, None)
                server.handle_exit(signal.SIGINT, None)
                error = events_of(await running)[-1]["error"]
                assert error["code"] == "draining" and "this answer was cut short" in error["message"]
            assert h.outcomes() == {"offered": 1, "failed": 1}

    asyncio.run(body())
