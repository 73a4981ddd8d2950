"""Places are taken before the prompt is tokenized, and given back whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from engine.messages import StepOutputs, StepStats
from scheduler.slo import SLO, SLOClasses
from server.errors import ApiError
from server.queue_places import QueuePlaces
from server.token_rate import MAX_RETRY_S, MIN_RETRY_S, TokenRate
from tests.fake_async_engine import fake_stats
from tests.http_harness import Harness, error_of, run, until

WAITING = {"realtime": 1, "interactive": 1, "standard": 1, "batch": 1}
"""Choices that wait in the engine."""


def _slo(name: str, may_degrade: bool = False) -> SLO:
    return SLO(requested=name, granted=name, may_degrade=may_degrade)


def _places(max_requests: int = 100) -> QueuePlaces:
    return QueuePlaces(SLOClasses(), max_requests)


def test_server_is_full_at_its_number_of_requests() -> None:
    places = _places(2)
    with places.take(_slo("standard"), 10, {}), places.take(_slo("batch"), 10, {}):
        with pytest.raises(ApiError) as full:
            places.take(_slo("realtime"), 1, {})
        assert (full.value.status, full.value.code) == (503, "server_full")
        assert full.value.headers()["retry-after"]
        places.check()
    assert places.num_taken == 0
    places.take(_slo("realtime"), 1, {})


def test_class_refuses_over_its_cap_and_another_class_does_not() -> None:
    places = _places()
    with places.take(_slo("realtime"), 7_000, WAITING) as first:
        with pytest.raises(ApiError) as full:
            places.take(_slo("realtime"), 2_000, WAITING)
        assert (full.value.status, full.value.code) == (429, "class_queue_full")
        assert "8000" in full.value.message and full.value.headers()["retry-after-ms"]
        with places.take(_slo("interactive"), 2_000, WAITING):
            places.check()
        first.admitted()
        with places.take(_slo("realtime"), 2_000, WAITING):
            assert places.queued_tokens("realtime") == 2_000
        places.check()
    assert places.queued_tokens("realtime") == 0 and places.num_taken == 0


def test_empty_queue_takes_a_request_larger_than_the_cap() -> None:
    places = _places()
    with places.take(_slo("realtime"), 1_000_000, WAITING):
        places.check()
    assert places.queued_tokens("realtime") == 0


def test_burst_on_an_engine_in_which_nothing_waits_is_left_to_the_engine() -> None:
    """It may be able to start all of them at once."""
    places = _places()
    taken = [places.take(_slo("realtime"), 5_000, {"realtime": 0, "batch": 9}) for _ in range(10)]
    assert places.queued_tokens("realtime") == 50_000
    for place in taken:
        with place:
            pass
    places.check()


def test_request_that_consents_is_counted_in_the_lower_class() -> None:
    places = _places()
    with places.take(_slo("interactive"), 32_000, WAITING):
        with pytest.raises(ApiError):
            places.take(_slo("interactive"), 1_000, WAITING)
        with places.take(_slo("interactive", may_degrade=True), 1_000, WAITING) as lower:
            assert lower.class_name == "standard"
            with places.take(_slo("standard"), 127_000, WAITING), pytest.raises(ApiError) as full:
                places.take(_slo("interactive", may_degrade=True), 1_000, WAITING)
            assert "interactive" in full.value.message
        places.check()


def test_better_number_replaces_the_estimate() -> None:
    places = _places()
    with places.take(_slo("realtime"), 5_000, {}) as first, places.take(_slo("realtime"), 1_000, {}) as second:
        second.set_tokens(9_000)
        assert places.queued_tokens("realtime") == 14_000
        first.set_tokens(10)
        assert places.queued_tokens("realtime") == 9_010
        places.check()
    assert places.queued_tokens("realtime") == 0


def test_full_server_refuses_before_it_tokenizes_and_the_others_are_unaffected() -> None:
    """Case 9: 503 with Retry-After at once; the accepted ones finish."""

    async def body(h: Harness) -> None:
        h.engine.script.admits = False
        accepted = [asyncio.ensure_future(h.chat()) for _ in range(4)]
        await until(lambda: len(h.engine.groups) == 4, "four groups in the engine")
        encoded = _count_calls(h)
        for stream in (False, True):
            response = await h.chat(stream=stream)
            error = error_of(response, 503)
            assert error["code"] == "server_full"
            assert float(response.headers["retry-after"]) > 0 and float(response.headers["retry-after-ms"]) > 0
        assert encoded == []
        assert h.outcomes() == {"offered": 6, "refused": 2}
        for task in accepted:
            task.cancel()
        await asyncio.gather(*accepted, return_exceptions=True)

    run(body, max_concurrent_requests=4)


def test_full_class_refuses_before_it_tokenizes() -> None:
    """Case 9, by class: 429, and other classes are served."""

    async def body(h: Harness) -> None:
        h.engine.script.admits = False
        options: dict[str, Any] = {"max_tokens": 8, "service_tier": "priority"}
        waiting = [asyncio.ensure_future(h.chat("word " * 90, **options)) for _ in range(41)]  # 192 tokens each
        await until(lambda: len(h.engine.groups) == 41, "the class's queue to fill")
        h.engine.tell_waiting({"realtime": 41})
        encoded = _count_calls(h)
        response = await h.chat("word " * 110, **options)
        error = error_of(response, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "class_queue_full")
        assert float(response.headers["retry-after"]) > 0
        assert encoded == []
        h.engine.script.admits = True
        assert (await h.chat()).status_code == 200
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(body)


def _count_calls(h: Harness) -> list[str]:
    """The list grows with every conversation that is rendered from now on."""
    calls: list[str] = []
    template = h.service.text.chat_template
    assert template is not None
    real = template.render

    def counting(*args: Any, **kwargs: Any) -> list[int]:
        calls.append("render")
        return real(*args, **kwargs)

    template.render = counting  # type: ignore[method-assign]
    return calls


def test_refusals_tell_how_long_the_backlog_ahead_takes() -> None:
    rate = TokenRate()
    rate.on_step(StepOutputs(stats=_stats(100, step_s=1.0)))
    places = QueuePlaces(SLOClasses(), 3, rate)
    cap = SLOClasses().get("standard").queue_cap_tokens
    places.take(_slo("standard"), 2000, WAITING)
    places.take(_slo("interactive"), 1000, WAITING)
    with pytest.raises(ApiError) as class_full:
        places.take(_slo("standard"), cap, WAITING)
    places.take(_slo("batch"), 2500, WAITING)
    with pytest.raises(ApiError) as full:
        places.take(_slo("interactive"), 1, WAITING)
    assert [(e.value.status, e.value.retry_after_s) for e in (class_full, full)] == [(429, 30.0), (503, 10.0)]


def test_rate_follows_the_steps_of_one_engine_after_the_other() -> None:
    rate = TokenRate()
    assert rate.retry_after_s(10_000) == MIN_RETRY_S, "nothing is known"
    rate.on_step(StepOutputs(stats=_stats(100, step_s=1.0)))
    for _ in range(1000):
        rate.on_step(StepOutputs(stats=_stats(100, step_s=1.0)))  # idle: it says nothing of the speed
    assert rate.retry_after_s(1000) == pytest.approx(10.0)
    rate.on_step(StepOutputs(stats=_stats(0, step_s=0.0)))  # another process
    for number in range(1, 500):
        rate.on_step(StepOutputs(stats=_stats(50 * number, step_s=1.0)))
    assert rate.retry_after_s(1000) == pytest.approx(20.0, rel=0.01)
    assert (rate.retry_after_s(1), rate.retry_after_s(10**9)) == (MIN_RETRY_S, MAX_RETRY_S)


def _stats(num_tokens: int, step_s: float) -> StepStats:
    return msgspec.structs.replace(fake_stats(1), prompt_tokens_computed=num_tokens, generation_tokens=0, step_s=step_s)
