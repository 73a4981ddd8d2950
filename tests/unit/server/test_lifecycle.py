"""Drain: refuse new requests at once, let the live ones finish, end the rest with an error."""

from __future__ import annotations

import asyncio

from tests.http_harness import Harness, error_of, events_of, run


def test_drain_refuses_new_requests_and_lets_the_live_one_finish() -> None:
    """Case 11: readiness at once, 503 with `connection: close`, the running stream is whole."""

    async def body(h: Harness) -> None:
        h.engine.script.holds_after = 2
        live = asyncio.ensure_future(h.chat(stream=True))
        await h.engine.is_holding.wait()
        drain = asyncio.ensure_future(h.service.lifecycle.drain(5.0))
        await asyncio.sleep(0)
        ready = await h.client.get("/readyz")
        assert ready.status_code == 503 and ready.json() == {"status": "draining", "live_requests": 1}
        for response in (await h.chat(), await h.client.get("/v1/models"), await h.client.get("/nope")):
            assert error_of(response, 503)["code"] == "draining"
            assert response.headers["connection"] == "close" and response.headers["retry-after"]
        assert (await h.client.get("/livez")).status_code == 200
        assert (await h.client.get("/metrics")).status_code == 200
        h.engine.release()
        events = events_of(await live)
        assert events[-1]["choices"][0]["finish_reason"] == "stop"
        await drain
        assert h.outcomes() == {"offered": 1, "met": 1}

    run(body)


def test_what_is_left_after_the_drain_time_gets_an_error_event() -> None:
    """Case 11."""

    async def body(h: Harness) -> None:
        h.engine.script.holds_after = 2
        streamed = asyncio.ensure_future(h.chat(stream=True))
        whole = asyncio.ensure_future(h.chat())
        await h.engine.is_holding.wait()
        h.engine.script.admits = False
        queued = asyncio.ensure_future(h.chat())
        while len(h.engine.groups) < 3:
            await asyncio.sleep(0)
        await h.service.lifecycle.drain(0.05)
        events = events_of(await streamed)
        assert events[-1]["error"]["code"] == "draining"
        for response in (await whole, await queued):
            assert error_of(response, 503)["code"] == "draining"
        assert not h.engine.live
        assert h.outcomes() == {"offered": 3, "failed": 3}

    run(body)


def test_request_whose_body_arrives_after_the_drain_began_is_refused() -> None:
    async def body(h: Harness) -> None:
        started = asyncio.Event()

        async def slow_body():  # type: ignore[no-untyped-def]
            yield b'{"messages": '
            started.set()
            while not h.service.lifecycle.is_draining:
                await asyncio.sleep(0)
            yield b'[{"role": "user", "content": "a"}]}'

        sending = asyncio.ensure_future(
            h.client.post("/v1/chat/completions", content=slow_body(), headers={"content-type": "application/json"})
        )
        await started.wait()
        await h.service.lifecycle.drain(1.0)
        assert error_of(await sending, 503)["code"] == "draining"
        assert not h.engine.groups

    run(body)
