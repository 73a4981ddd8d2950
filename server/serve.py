"""`headrace serve` from its configs to its end: HTTP, the engine's supervisor, start, drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from rich.console import Console

from engine.errors import EngineStartError
from server.app import create_app
from server.chat import TemplateError
from server.composition import ServeConfig, load_text, make_service, make_supervisor
from server.early_signals import EarlySignals
from server.http_server import HttpServer
from server.listener import url_of
from server.request_log import RequestLog
from server.start_report import show_start
from server.text_worker import TextWorkers
from server.tokenizer_parts import TokenizerError


class ServeError(Exception):
    """The server cannot start; the message says why."""


class Serving:
    """One run of the server in one event loop: the first SIGTERM or SIGINT drains, a second one cuts off."""

    def __init__(self, config: ServeConfig, listener: socket.socket, console: Console) -> None:
        self._config = config
        self._listener = listener
        self._console = console
        self._supervisor = make_supervisor(config)

    async def run(self) -> None:
        """Serve until a signal and the drain after it.

        Raises:
            ServeError: the engine did not start, or one of the model's or the user's files cannot be used.
        """
        try:
            # The engine loads its weights while this process loads the tokenizer.
            self._supervisor.launch()
            loading = asyncio.create_task(asyncio.to_thread(load_text, self._config))
            with EarlySignals(loading) as signals, contextlib.suppress(asyncio.CancelledError):
                async with await loading as text:
                    await self._serve(text, signals)
        except (EngineStartError, TokenizerError, TemplateError, OSError) as error:
            raise ServeError(str(error)) from error
        finally:
            await self._supervisor.stop()

    async def _serve(self, text: TextWorkers, signals: EarlySignals) -> None:
        server = self._config.server
        with _request_log(server.request_log_path) as request_log:
            service = make_service(self._config, self._supervisor.engine, text, request_log)
            http = HttpServer(create_app(service), service.lifecycle, server.drain_timeout_s)
            if signals.has_come:
                return
            start = asyncio.create_task(self._announce(http))
            try:
                await http.serve(sockets=[self._listener])
            finally:
                _remove(server.ready_file_path)
                start.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await start

    async def _announce(self, http: HttpServer) -> None:
        """Wait for the engine and tell where it answers; if it does not start, end the server.

        Raises:
            EngineStartError: see there.
        """
        try:
            await self._supervisor.wait_ready()
        except EngineStartError as error:
            http.stop()
            raise EngineStartError(f"the engine did not start: {error}") from error
        ready = self._supervisor.engine.ready
        assert ready is not None
        # What was loaded lives as long as the process: the collector need not walk through it while streams wait.
        gc.collect()
        gc.freeze()
        url = url_of(self._listener)
        _write(self._config.server.ready_file_path, url)
        policy = self._config.scheduler.scheduler_policy
        show_start(self._console, url, self._config.model_id, ready, self._config.classes, policy)


def serve(config: ServeConfig, listener: socket.socket, console: Console) -> None:
    """Serve until a signal.

    Args:
        listener: the listening socket; it is closed in the end.

    Raises:
        ServeError: see `Serving.run`.
    """
    with listener, asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()) as runner:
        runner.run(Serving(config, listener, console).run())


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
