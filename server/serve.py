"""`headrace serve` from its configs to its end: HTTP, the engine's supervisor, start, drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from rich.console import Console

from engine.errors import EngineStartError
from server.app import create_app
from server.chat import TemplateError
from server.composition import ServeConfig, load_text, make_service, make_supervisor
from server.lifecycle import Lifecycle
from server.listener import url_of
from server.request_log import RequestLog
from server.start_report import show_start
from server.tokenizer_parts import TokenizerError

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""Longer than the 60 s of the usual balancers, so that they close idle connections and never meet one closing."""
CLOSE_TIMEOUT_S = 3
"""For answers that are on their way when the drain is over."""


class ServeError(Exception):
    """The server cannot start; the message says why."""


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: here a signal drains first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Serving:
    """One run of the server in one event loop.

    The first SIGTERM or SIGINT drains and then ends it; a second one ends it at once.
    """

    def __init__(self, config: ServeConfig, listener: socket.socket, console: Console) -> None:
        self._config = config
        self._listener = listener
        self._console = console
        self._supervisor = make_supervisor(config)
        self._lifecycle: Lifecycle | None = None
        self._http: _HttpServer | None = None
        self._drain: asyncio.Task[None] | None = None
        self._start_error: EngineStartError | None = None

    async def run(self) -> None:
        """Serve until a signal, then drain.

        Raises:
            ServeError: the engine did not start, or one of the model's or the user's files cannot be used.
        """
        running = asyncio.ensure_future(self._run())
        with self._signals(running), contextlib.suppress(asyncio.CancelledError):
            await running
        if self._start_error is not None:
            raise ServeError(f"the engine did not start: {self._start_error}")

    async def _run(self) -> None:
        try:
            # The engine loads its weights while this process loads the tokenizer.
            self._supervisor.launch()
            await self._serve()
        except (EngineStartError, TokenizerError, TemplateError, OSError) as error:
            raise ServeError(str(error)) from error
        finally:
            await self._supervisor.stop()

    async def _serve(self) -> None:
        config = self._config
        async with await asyncio.to_thread(load_text, config) as text:
            with _request_log(config.server.request_log_path) as request_log:
                service = make_service(config, self._supervisor.engine, text, request_log)
                self._lifecycle = service.lifecycle
                self._http = _HttpServer(_http_config(create_app(service)))
                start = asyncio.create_task(self._announce(self._http))
                try:
                    await self._http.serve(sockets=[self._listener])
                finally:
                    start.cancel()
                    await asyncio.gather(start, return_exceptions=True)
                    _remove(config.server.ready_file_path)

    async def _announce(self, http: _HttpServer) -> None:
        """Wait for the engine; tell where it answers, or end the server."""
        try:
            await self._supervisor.wait_ready()
        except EngineStartError as error:
            self._start_error = error
            http.should_exit = True
            return
        ready = self._supervisor.engine.ready
        if ready is None:  # a signal came first
            return
        # What was loaded lives as long as the process: the collector need not walk through it while streams wait.
        gc.collect()
        gc.freeze()
        url = url_of(self._listener)
        _write(self._config.server.ready_file_path, url)
        show_start(self._console, url, self._config.model_id, ready, self._config.classes)

    @contextlib.contextmanager
    def _signals(self, running: asyncio.Future[None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, running)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self, running: asyncio.Future[None]) -> None:
        if self._http is None or self._lifecycle is None:
            running.cancel()
        elif self._drain is None:
            self._drain = asyncio.ensure_future(self._drain_and_exit(self._http, self._lifecycle))
        else:
            logger.warning("second signal: ending at once")
            self._lifecycle.cut_off()
            self._http.should_exit = self._http.force_exit = True

    async def _drain_and_exit(self, http: _HttpServer, lifecycle: Lifecycle) -> None:
        await lifecycle.drain(self._config.server.drain_timeout_s)
        http.should_exit = True


def serve(config: ServeConfig, listener: socket.socket, console: Console) -> None:
    """Serve until a signal.

    Args:
        listener: the listening socket; it is closed in the end.

    Raises:
        ServeError: see `Serving.run`.
    """
    with listener, asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        runner.run(Serving(config, listener, console).run())


def _http_config(app: object) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # FastAPI's type is wider than uvicorn's
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
    )


@contextlib.contextmanager
def _request_log(path: str | None) -> Iterator[RequestLog | None]:
    if path is None:
        yield None
        return
    with contextlib.closing(RequestLog(path)) as log:
        yield log


def _write(path: str | None, url: str) -> None:
    """In one step: whoever finds the file finds a whole URL in it."""
    if path is not None:
        temporary = Path(f"{path}.{os.getpid()}")
        temporary.write_text(url + "\n", encoding="utf-8")
        temporary.replace(path)


def _remove(path: str | None) -> None:
    if path is not None:
        Path(path).unlink(missing_ok=True)
