"""One streamed request over HTTP, with its timestamps. Nothing is ever retried."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from loadgen.config import BenchConfig
from loadgen.events import StreamError, StreamReader, error_code, error_text, parse_data
from loadgen.server_probe import ServerInfo
from loadgen.targets import read_told_targets
from loadgen.trace import RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest

_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_MAX_ERROR_BODY_BYTES = 65_536


def base_url(url: str) -> str:
    """The server's URL without `/v1` and slashes at its end, and with a scheme."""
    url = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    return url if "://" in url else f"http://{url}"


def make_http_client(config: BenchConfig) -> httpx.AsyncClient:
    """A client without retries, proxies and limits on connections, so that nothing of ours delays a request.

    Without `keep_alive` each request has a connection of its own: no server can close one that is about to be reused.
    """
    headers = {"accept-encoding": "identity"}
    if config.api_key is not None:
        headers["authorization"] = f"Bearer {config.api_key}"
    if not config.keep_alive:
        headers["connection"] = "close"
    return httpx.AsyncClient(
        base_url=base_url(config.url),
        headers=headers,
        timeout=httpx.Timeout(config.timeout_s),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None if config.keep_alive else 0),
        trust_env=False,
        follow_redirects=False,
    )


class LoadClient:
    """Sends planned requests to one server."""

    def __init__(self, config: BenchConfig, http: httpx.AsyncClient, server: ServerInfo, *, names_class: bool) -> None:
        self._config = config
        self._http = http
        self._server = server
        self._names_class = names_class

    async def send(self, planned: PlannedRequest, intended_s: float) -> RequestTrace:
        """Send one request and read its answer to the end; whatever happens ends up in the trace.

        Being cancelled ends the request, not the call: the trace says so.
        """
        loop = asyncio.get_running_loop()
        request = self._build(planned)
        trace = RequestTrace(planned, intended_s, sent_s=loop.time())
        try:
            async with asyncio.timeout_at(intended_s + self._config.timeout_s):
                await self._exchange(request, trace)
        except (TimeoutError, httpx.TimeoutException):
            trace.finish(TraceEnd.TIMED_OUT, loop.time(), f"no end within {self._config.timeout_s:g} s", "timed_out")
        except asyncio.CancelledError:
            trace.finish(TraceEnd.CANCELLED, loop.time(), "the run was interrupted", "interrupted")
        except (httpx.HTTPError, StreamError) as error:
            name = type(error).__name__
            code = error.code if isinstance(error, StreamError) else name
            trace.finish(TraceEnd.FAILED, loop.time(), f"{name}: {error}", code)
        return trace

    def _build(self, planned: PlannedRequest) -> httpx.Request:
        config = self._config
        body: dict[str, Any] = {
            "model": self._server.model,
            "max_tokens": planned.num_output_tokens,
            "temperature": config.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if config.api == "chat":
            body["messages"] = [{"role": "user", "content": planned.prompt}]
        else:
            body["prompt"] = planned.prompt
        if config.ignore_eos:
            body["ignore_eos"] = True
        headers: dict[str, str] = {}
        if self._names_class and config.class_in == "header":
            headers["x-slo-class"] = planned.slo_class
        elif self._names_class:
            body["service_tier"] = self._server.service_tier(planned.slo_class)
        return self._http.build_request("POST", _PATHS[config.api], json=body, headers=headers)

    async def _exchange(self, request: httpx.Request, trace: RequestTrace) -> None:
        loop = asyncio.get_running_loop()
        response = await self._http.send(request, stream=True)
        try:
            trace.headers_s = loop.time()
            trace.status = response.status_code
            trace.told = read_told_targets(response.headers)
            if response.status_code != 200:
                await self._read_refusal(response, trace)
            elif not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise StreamError(f"the answer is {response.headers.get('content-type')!r}, not an event stream")
            else:
                await _read_stream(response, trace)
        finally:
            await response.aclose()

    async def _read_refusal(self, response: httpx.Response, trace: RequestTrace) -> None:
        raw = b""
        async for part in response.aiter_bytes():
            raw += part
            if len(raw) > _MAX_ERROR_BODY_BYTES:
                break
        try:
            body: object = json.loads(raw)
        except ValueError:
            body = raw.decode("utf-8", "replace")
        code = error_code(body)
        end = _refusal_end(response.status_code, code)
        now_s = asyncio.get_running_loop().time()
        trace.finish(end, now_s, f"HTTP {response.status_code}: {error_text(body)}", code)


async def _read_stream(response: httpx.Response, trace: RequestTrace) -> None:
    loop = asyncio.get_running_loop()
    reader = StreamReader(trace)
    async for line in response.aiter_lines():
        data = parse_data(line)
        if data is not None:
            reader.feed(data, loop.time())
        if reader.is_done:
            reader.close(loop.time())  # the rest is read so that the server does not see us leave
    reader.close(loop.time())


def _refusal_end(status: int, code: str | None) -> TraceEnd:
    """429 and 503 are a server's way to say no; anything else that is not 200 is a failure."""
    if status == 503 and code == "expired":
        return TraceEnd.EXPIRED
    return TraceEnd.REFUSED if status in (429, 503) else TraceEnd.FAILED
