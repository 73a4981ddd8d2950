"""Ending a block from outside: in every moment, with one cause, and without a trace left in the task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from starlette.types import Message

from server.interruption import ClientLeft, Interruption, ServerEnds


class Client:
    """`receive` that says disconnect when told to."""

    def __init__(self) -> None:
        self._has_left = asyncio.Event()

    def leave(self) -> None:
        self._has_left.set()

    async def receive(self) -> Message:
        await self._has_left.wait()
        return {"type": "http.disconnect"}


def _run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(5):
            await test

    asyncio.run(bounded())


def test_disconnect_ends_the_block() -> None:
    async def body() -> None:
        client = Client()
        asyncio.get_running_loop().call_soon(client.leave)
        with pytest.raises(ClientLeft):
            async with Interruption(client.receive):
                await asyncio.Event().wait()

    _run(body())


def test_first_cause_wins_and_later_ones_change_nothing() -> None:
    async def body() -> None:
        client = Client()
        interruption = Interruption(client.receive)
        with pytest.raises(ServerEnds):
            async with interruption:
                interruption.interrupt(ServerEnds())
                client.leave()
                await asyncio.Event().wait()
        interruption.interrupt(ClientLeft())
        await asyncio.sleep(0)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]

    _run(body())


def test_block_that_ends_in_the_same_moment_has_ended_by_itself() -> None:
    async def body() -> None:
        interruption = Interruption(Client().receive)
        async with interruption:
            interruption.interrupt(ServerEnds())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    _run(body())


def test_error_of_the_block_goes_before_the_interruption() -> None:
    async def body() -> None:
        interruption = Interruption(Client().receive)
        with pytest.raises(ValueError, match="mine"):
            async with interruption:
                interruption.interrupt(ServerEnds())
                raise ValueError("mine")
        await asyncio.sleep(0)

    _run(body())


def test_cancellation_from_elsewhere_stays_a_cancellation() -> None:
    async def body() -> None:
        client = Client()
        entered = asyncio.Event()

        async def guarded() -> None:
            async with Interruption(client.receive):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(guarded())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    _run(body())


def test_cleanup_of_the_block_runs_to_its_end() -> None:
    async def body() -> None:
        client = Client()
        steps = []
        asyncio.get_running_loop().call_soon(client.leave)
        with pytest.raises(ClientLeft):
            async with Interruption(client.receive):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0)
                    steps.append("cleaned")
        assert steps == ["cleaned"]

    _run(body())


def test_watcher_is_gone_after_the_block() -> None:
    async def body() -> None:
        before = asyncio.all_tasks()
        async with Interruption(Client().receive):
            assert len(asyncio.all_tasks()) == len(before) + 1
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    _run(body())
