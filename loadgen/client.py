"""One streamed request over HTTP, with its timestamps. Nothing is ever retried."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from loadgen.class_mix import NO_CLASS, ClassMix
from loadgen.config import BenchConfig, BenchError
from loadgen.events import EventReceiver, LeftError, StreamError
from loadgen.http_transport import HttpTransport, ServerAddress
from loadgen.server_probe import ServerInfo
from loadgen.trace import LEFT, RequestTrace, TraceEnd
from loadgen.transport import Transport, TransportError
from loadgen.workload import PlannedRequest

_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def base_url(url: str) -> str:
    """The server's URL without `/v1` and slashes at its end, and with a scheme."""
    url = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    return url if "://" in url else f"http://{url}"


def make_http_client(config: BenchConfig, tls: ssl.SSLContext) -> httpx.AsyncClient:
    """What asks the server about itself, without retries and proxies. The load does not go through it."""
    headers = {"accept-encoding": "identity"}
    if config.api_key is not None:
        headers["authorization"] = f"Bearer {config.api_key}"
    return httpx.AsyncClient(
        base_url=base_url(config.url), headers=headers, verify=tls, trust_env=False, follow_redirects=False
    )


def make_transport(config: BenchConfig, tls: ssl.SSLContext) -> HttpTransport:
    """What the load goes through: no proxies, no limit on connections, so that nothing of ours delays a request.

    Without `keep_alive` each request has a connection of its own: no server can close one that is about to be reused.

    Raises:
        ValueError: the URL is none.
        BenchError: the URL holds a password.
    """
    url = httpx.URL(base_url(config.url))
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("it must begin with http:// or https:// and name a host")
    if url.userinfo:
        raise BenchError("the URL holds a password, which would stand in every report: give a key with --api-key")
    is_tls = url.scheme == "https"
    path = url.raw_path.partition(b"?")[0].decode("ascii").rstrip("/")
    address = ServerAddress(url.raw_host.decode("ascii"), url.port or (443 if is_tls else 80), path, is_tls)
    headers = {} if config.api_key is None else {"authorization": f"Bearer {config.api_key}"}
    return HttpTransport(address, headers, keep_alive=config.keep_alive, tls=tls)


class LoadClient:
    """Sends planned requests to one server."""

    def __init__(self, config: BenchConfig, transport: Transport, server: ServerInfo, mix: ClassMix) -> None:
        self._config = config
        self._transport = transport
        self._server = server
        self._mix = mix

    async def send(self, planned: PlannedRequest, intended_s: float) -> RequestTrace:
        """Send one request and read its answer to the end; whatever happens ends up in the trace.

        Being cancelled ends the request, not the call: the trace says so.
        """
        loop = asyncio.get_running_loop()
        headers, body = self._build(planned)
        trace = RequestTrace(planned, intended_s, sent_s=loop.time())
        receiver = EventReceiver(trace, loop.time)
        try:
            async with asyncio.timeout_at(intended_s + self._config.timeout_s):
                await self._transport.post(_PATHS[self._config.api], headers, body, receiver)
            receiver.close()
        except TimeoutError:
            trace.finish(TraceEnd.TIMED_OUT, loop.time(), f"no end within {self._config.timeout_s:g} s", "timed_out")
        except asyncio.CancelledError:
            trace.finish(TraceEnd.CANCELLED, loop.time(), "the run was interrupted", "interrupted")
        except LeftError as left:
            trace.finish(TraceEnd.CANCELLED, loop.time(), str(left), LEFT)
        except (TransportError, StreamError) as error:
            name = error.code if isinstance(error, TransportError) else type(error).__name__
            trace.finish(TraceEnd.FAILED, loop.time(), f"{name}: {error}", error.code)
        return trace

    def _build(self, planned: PlannedRequest) -> tuple[Mapping[str, str], bytes]:
        config = self._config
        body: dict[str, Any] = {
            "model": self._server.model,
            config.length_field: planned.num_output_tokens,
            "temperature": config.temperature,
            "stream": True,
        }
        if config.stream_usage:
            body["stream_options"] = {"include_usage": True}
        if config.api == "chat":
            body["messages"] = _messages(planned)
        else:
            body["prompt"] = " ".join([*(text for turn in planned.history for text in turn), planned.prompt])
        if config.ignore_eos:
            body["ignore_eos"] = True
        headers = self._name_class(planned.slo_class, body)
        return headers, json.dumps(body).encode()

    def _name_class(self, name: str, body: dict[str, Any]) -> dict[str, str]:
        """The headers that name the class; or it is named in `body`."""
        slo_class = self._mix.find(name)
        headers: dict[str, str] = {}
        if slo_class.service_tier is not None:
            body["service_tier"] = slo_class.service_tier
        elif self._mix.names_class and name != NO_CLASS:
            if self._config.class_in == "header":
                headers["x-slo-class"] = name
            else:
                body["service_tier"] = self._server.service_tier(name)
        if slo_class.header is not None:
            header, value = slo_class.header
            headers[header] = value
        return headers


def _messages(planned: PlannedRequest) -> list[dict[str, str]]:
    messages = []
    for asked, answered in planned.history:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return [*messages, {"role": "user", "content": planned.prompt}]
