"""Writes one answer to the client: events of a stream, one JSON body, or an error in the form that still fits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import Message, Send

from engine.errors import SlowConsumer
from server import sse
from server.answer import AnswerWriter
from server.asgi import encode_headers, send_error
from server.choice_text import ChoiceUpdate
from server.errors import JSON_MEDIA_TYPE, api_error, cut_short
from server.generation import Generation
from server.interruption import ClientLeft, ServerEnds
from server.json_pieces import Piece, blocks
from server.request_record import RequestRecord

WRITE_TIMEOUT_S = 60.0
"""A client that takes nothing for so long is gone."""
LAST_WRITE_TIMEOUT_S = 1.0
"""For the error that ends a stream: the client may be the one that does not read."""


class AnswerSender:
    """Knows whether the headers were sent, and so in which form an error can still be told."""

    def __init__(self, send: Send) -> None:
        self._socket_send = send
        self._has_started = False
        self._is_streaming = False

    async def send(
        self, generation: Generation, writer: AnswerWriter, record: RequestRecord, headers: Mapping[str, str]
    ) -> None:
        """Everything that the generation makes.

        Raises:
            SlowConsumer: the client does not read.
            ApiError, EngineError: from the generation.
        """
        if generation.plan.streams:
            await self._stream(generation, writer, record, headers)
        else:
            await self._answer(generation, writer, record, headers)

    async def _stream(
        self, generation: Generation, writer: AnswerWriter, record: RequestRecord, headers: Mapping[str, str]
    ) -> None:
        await self._start_stream(headers)
        while updates := await generation.next_updates():
            events: list[bytes] = []
            for update in updates:
                for part in update.parts():
                    chunks = writer.chunks(part)
                    _add_usage(chunks, generation)
                    events.append(sse.events(chunks))
                    await generation.share.pause()
            if any(events):
                _note(record, updates)
                await self._write(b"".join(events))
        last = b""
        if generation.plan.includes_usage or generation.plan.has_continuous_usage:
            last = sse.event(writer.usage_chunk(generation.usage()))
        await self._write(last + sse.DONE, is_last=True)

    async def _answer(
        self, generation: Generation, writer: AnswerWriter, record: RequestRecord, headers: Mapping[str, str]
    ) -> None:
        while updates := await generation.next_updates():
            _note(record, updates)
            for update in updates:
                for part in update.parts():
                    writer.collect(part)
                    await generation.share.pause()
        pieces: list[Piece] = []
        for piece in writer.answer(generation.usage()):
            pieces.append(piece)
            await generation.share.pause()
        took_ms = (time.monotonic() - record.arrival_s) * 1000.0
        headers = {
            "content-type": JSON_MEDIA_TYPE,
            "content-length": str(sum(map(len, pieces))),
            "openai-processing-ms": f"{took_ms:.0f}",
            **headers,
        }
        await self._send({"type": "http.response.start", "status": 200, "headers": encode_headers(headers)})
        for block in blocks(pieces):
            await self._write(block)
            await generation.share.pause()
        await self._write(b"", is_last=True)

    async def fail(self, error: Exception) -> None:
        """Tell the client what went wrong, if it is still there: as a response, or as the last event of its stream."""
        if isinstance(error, ClientLeft):
            return
        answer = cut_short() if isinstance(error, ServerEnds) else api_error(error)
        assert answer is not None, f"{error!r} has no answer"
        if not self._has_started:
            await send_error(answer, self._send)
        if not self._is_streaming:
            return  # a whole answer that was cut off: the connection is closed, which the client sees
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WRITE_TIMEOUT_S):
                await self._send_bytes(sse.error_event(answer) + sse.DONE, is_last=True)

    async def _send(self, message: Message) -> None:
        self._has_started = self._has_started or message["type"] == "http.response.start"
        await self._socket_send(message)

    async def _start_stream(self, headers: Mapping[str, str]) -> None:
        self._is_streaming = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": encode_headers({**sse.HEADERS, **headers})}
        )

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._send_bytes(data, is_last=is_last)
        except TimeoutError:
            raise SlowConsumer(f"the client read nothing for {WRITE_TIMEOUT_S:g} s") from None

    async def _send_bytes(self, data: bytes, *, is_last: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})


def _note(record: RequestRecord, updates: list[ChoiceUpdate]) -> None:
    """These tokens are handed over now."""
    now_s = time.monotonic()
    for update in updates:
        if update.token_ids:
            record.token(update.choice, now_s, len(update.token_ids))
        if update.finish_reason is not None:
            record.choice_finished(update.choice, update.finish_reason)


def _add_usage(chunks: list[dict[str, Any]], generation: Generation) -> None:
    """Chunks before the last say the usage so far, or null where only the last one has it."""
    plan = generation.plan
    if plan.has_continuous_usage:
        usage: dict[str, object] | None = generation.usage()
    elif plan.includes_usage:
        usage = None
    else:
        return
    for chunk in chunks:
        chunk["usage"] = usage
