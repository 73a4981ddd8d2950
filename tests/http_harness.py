"""The whole HTTP layer in one event loop: real routes, tokenizer and metrics, a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
from fastapi import FastAPI

from scheduler.slo import SLOClasses
from server.app import PATHS, create_app
from server.chat import ChatTemplate
from server.config import ServerConfig
from server.http_server import HttpServer
from server.lifecycle import Lifecycle
from server.listener import listen, url_of
from server.metrics import Metrics
from server.queue_places import QueuePlaces
from server.request_ledger import RequestLedger
from server.request_log import RequestLog
from server.service import Service
from server.text_worker import TextWorkers
from server.tokenizer import Tokenizer
from tests.fake_async_engine import FakeEngine
from tests.tiny_tokenizers import EOS, tiny_gpt2

MODEL_ID = "org/tiny-model"
ANSWER = "Hello, 漢字 and 😀 and beta gamma delta."
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
DEADLINE_S = 10.0


@dataclasses.dataclass(slots=True)
class Harness:
    engine: FakeEngine
    service: Service
    app: FastAPI
    client: httpx.AsyncClient

    @property
    def tokenizer(self) -> Tokenizer:
        return self.service.tokenizer

    async def chat(self, content: str = "hi", **body: Any) -> httpx.Response:
        message = {"role": "user", "content": content}
        return await self.client.post("/v1/chat/completions", json={"messages": [message], **body})

    async def complete(self, prompt: Any = "hi", **body: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": prompt, **body})

    def says(self, *texts: str) -> None:
        """Choice i answers with texts[i % len(texts)]."""
        ids = [self.tokenizer.encode(text, add_special_tokens=False, parse_special=False) for text in texts]
        self.engine.script.output = lambda choice, _: ids[choice % len(ids)]

    def outcomes(self) -> dict[str, int]:
        """Counts over all classes, zeros left out."""
        totals: dict[str, int] = {}
        for counts in self.service.metrics.request_counts().values():
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
        return {name: count for name, count in totals.items() if count and not name.startswith("promises")}

    def check(self) -> None:
        """Nothing is left over once no request is live."""
        self.service.ledger.check()
        self.service.places.check()
        assert self.service.ledger.num_live == 0
        assert self.service.places.num_taken == 0
        assert self.service.lifecycle.num_live == 0
        assert not self.engine.live


def make_harness(
    *,
    classes: SLOClasses | None = None,
    template: str | None = CHATML,
    max_model_len: int = 256,
    request_log: RequestLog | None = None,
    **config: Any,
) -> Harness:
    """Ready to serve. Close it with `close_harness`."""
    tokenizer = tiny_gpt2()
    classes = classes or SLOClasses()
    server_config = ServerConfig(**config)
    answer = tokenizer.encode(ANSWER, add_special_tokens=False, parse_special=False)
    engine = FakeEngine(
        lambda choice, prompt: answer, vocab_size=tokenizer.vocab_size, eos_token_id=EOS, max_model_len=max_model_len
    )
    engine.become_ready()
    metrics = Metrics(classes, MODEL_ID, handlers=PATHS)
    service = Service(
        config=server_config,
        classes=classes,
        scheduler_policy="deadline",
        model_id=MODEL_ID,
        version="1.2.3",
        engine=engine.engine,
        text=TextWorkers(tokenizer, None if template is None else ChatTemplate(tokenizer, template)),
        metrics=metrics,
        ledger=RequestLedger(classes, metrics, request_log),
        lifecycle=Lifecycle(),
        places=QueuePlaces(classes, server_config.max_concurrent_requests),
        created_s=1_700_000_000,
    )
    app = create_app(service)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=DEADLINE_S)
    return Harness(engine, service, app, client)


@contextlib.asynccontextmanager
async def harness(**options: Any) -> AsyncIterator[Harness]:
    made = make_harness(**options)
    try:
        async with made.client:
            yield made
    finally:
        made.engine.close()
        made.service.text.close()


@contextlib.asynccontextmanager
async def listening(made: Harness, drain_timeout_s: float = 5.0) -> AsyncIterator[tuple[str, HttpServer]]:
    """A real server with the harness's application on a free port; its URL."""
    listener: socket.socket = listen("127.0.0.1", 0)
    server = HttpServer(made.app, made.service.lifecycle, drain_timeout_s)
    task = asyncio.create_task(server.serve([listener]))
    try:
        await until(lambda: server.started, "the server to start")
        yield url_of(listener), server
    finally:
        server.stop()
        async with asyncio.timeout(DEADLINE_S):
            await task


async def until(condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Wait for a condition that other tasks bring about."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s for {what}")
        await asyncio.sleep(0.001)


def events_of(response: httpx.Response) -> list[Any]:
    """The JSON values of a stream; checks the framing and that [DONE] comes once, at the end."""
    assert response.headers["content-type"].startswith("text/event-stream")
    frames = response.text.split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames), frames
    data = [frame.removeprefix("data: ") for frame in frames]
    assert data.count("[DONE]") == 1 and data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def text_of(chunks: list[Any], index: int = 0) -> str:
    """Of one choice of a streamed answer, chat or text."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object; checks its shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body: dict[str, Any] = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    assert isinstance(error["message"], str) and isinstance(error["type"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    return error


def run(test: Callable[[Harness], Awaitable[None]], **options: Any) -> None:
    """Run an async test body with a harness of its own, and check that nothing is left over."""

    async def body() -> None:
        async with harness(**options) as made:
            async with asyncio.timeout(DEADLINE_S):
                await test(made)
                await until(lambda: made.service.lifecycle.num_live == 0, "live requests to end")
            made.check()

    asyncio.run(body())
