"""A client that leaves while its prompt is computed: a real engine process whose steps are slow."""

from __future__ import annotations

import asyncio
import dataclasses
import sys

import httpx

from engine.config import EngineConfig
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses
from server.app import create_app
from server.supervisor import Supervisor
from tests.http_harness import DEADLINE_S, Harness, harness, listening, until

CHUNK_TOKENS = 64
STEP_S = 0.1
PROMPT = [9 + index % 300 for index in range(16 * CHUNK_TOKENS)]


def test_abort_during_the_prefill_stops_it_within_a_chunk() -> None:
    """Case 3: of sixteen chunks only the first few are computed."""

    async def body() -> None:
        supervisor = Supervisor(
            EngineConfig("no model", threads=1),
            SchedulerConfig(max_num_batched_tokens=CHUNK_TOKENS, max_num_seqs=8),
            SLOClasses(),
            command=(sys.executable, "-P", "-m", "tests.fake_engine", "--step-s", f"{STEP_S}"),
        )
        async with harness() as made, asyncio.timeout(3 * DEADLINE_S):
            service = dataclasses.replace(made.service, engine=supervisor.engine)
            real = Harness(made.engine, service, create_app(service), made.client)
            await supervisor.start()
            try:
                async with listening(real) as (url, _):
                    await _leave_at_once(url)
                    stats = supervisor.engine
                    await until(lambda: stats.num_open_groups == 0, "the group to be gone")
                    await until(lambda: stats.stats is not None and stats.stats.num_running == 0, "its blocks", 2.0)
                assert stats.stats is not None
                assert 0 < stats.stats.prompt_tokens_computed <= 5 * CHUNK_TOKENS
                assert stats.stats.num_blocks_used == 0
                assert real.outcomes() == {"offered": 1, "cancelled": 1}
            finally:
                await supervisor.stop()
            real.check()

    asyncio.run(body())


async def _leave_at_once(url: str) -> None:
    """The headers come when the first chunk is computed."""
    request = {"prompt": PROMPT, "stream": True, "max_tokens": 5}
    async with (
        httpx.AsyncClient(timeout=DEADLINE_S) as client,
        client.stream("POST", f"{url}/v1/completions", json=request) as response,
    ):
        assert response.status_code == 200
