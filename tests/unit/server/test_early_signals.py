"""Signals before the HTTP server takes them over."""

from __future__ import annotations

import asyncio
import signal

import pytest

from server.early_signals import EarlySignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_task_and_the_old_handler_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    async def main() -> bool:
        task = asyncio.create_task(asyncio.Event().wait())
        with EarlySignals(task) as signals:
            signal.raise_signal(number)
            with pytest.raises(asyncio.CancelledError):
                await task
        return signals.has_come

    assert asyncio.run(main())
    assert signal.getsignal(number) is before


def test_a_signal_is_remembered_at_once_also_while_the_loop_is_busy() -> None:
    async def main() -> tuple[bool, bool]:
        task = asyncio.create_task(asyncio.sleep(0))
        await task
        with EarlySignals(task) as signals:
            before = signals.has_come
            signal.raise_signal(signal.SIGTERM)
            return before, signals.has_come

    assert asyncio.run(main()) == (False, True)
