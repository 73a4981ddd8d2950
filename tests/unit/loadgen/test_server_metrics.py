"""What is read of a server's metrics, under which names; and the wait until it has counted all."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from loadgen.exposition import Sample
from loadgen.server_metrics import MetricsSnapshot, scrape, scrape_settled
from tests.virtual_loop import run_virtually

HEADRACE = (
    'headrace_requests_offered_total{slo_class="a"} %d\n'
    'headrace_requests_slo_total{slo_class="a",outcome="met"} %d\n'
    'vllm:request_success_total{finished_reason="stop"} 9\n'
)
OTHERS = {
    "vLLM": (
        'vllm:num_requests_running{engine="0"} 2\n'
        'vllm:num_requests_running{engine="1"} 1\n'
        "vllm:num_requests_waiting 4\n"
    ),
    "SGLang": "sglang:num_running_reqs 5\nsglang:num_queue_reqs 2",
    "llama.cpp": "llamacpp:requests_processing 3\nllamacpp:requests_deferred 4",
}


async def _scrape(handle: Callable[[httpx.Request], httpx.Response]) -> MetricsSnapshot:
    async with httpx.AsyncClient(base_url="http://x", transport=httpx.MockTransport(handle)) as http:
        return await scrape(http)


@pytest.mark.parametrize(("server", "text"), OTHERS.items())
def test_each_servers_requests_inside_are_counted_over_all_series(server: str, text: str) -> None:
    snapshot = run_virtually(_scrape(lambda _: httpx.Response(200, text=text)))
    assert snapshot.problem is None and snapshot.dialect is not None
    assert (snapshot.dialect.server, snapshot.num_open) == (server, 7.0)


def test_headrace_is_known_beside_vllms_names_and_its_open_requests_are_exact() -> None:
    snapshot = run_virtually(_scrape(lambda _: httpx.Response(200, text=HEADRACE % (12, 9))))
    assert snapshot.dialect is not None and snapshot.dialect.server == "Headrace"
    assert (snapshot.num_open, snapshot.outcomes("a"), snapshot.outcomes("b")) == (3.0, {"met": 9.0}, {})


def _broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    ("handle", "problem"),
    [
        (lambda _: httpx.Response(404, text="nothing here"), "/metrics: HTTP 404: nothing here"),
        (lambda _: httpx.Response(501, json={"error": {"message": "start with --metrics"}}), "start with --metrics"),
        (lambda _: httpx.Response(200, text="<html></html>"), "/metrics cannot be read: no name of a metric: '<html>"),
        (lambda _: httpx.Response(200, text="go_threads 7\n"), "no metric of a known server"),
        (_broken, "/metrics: refused"),
    ],
)
def test_what_goes_wrong_is_told_and_breaks_nothing(
    handle: Callable[[httpx.Request], httpx.Response], problem: str
) -> None:
    snapshot = run_virtually(_scrape(handle))
    assert problem in str(snapshot.problem)
    assert snapshot.samples == ()


@pytest.mark.parametrize(("open_later", "num_readings", "num_open"), [([2, 1, 0, 0], 3, 0), ([1] * 99, 21, 1)])
def test_a_server_is_given_a_moment_to_count_what_has_ended(
    open_later: list[int], num_readings: int, num_open: int
) -> None:
    readings = iter(open_later)
    read = []

    def handle(_: httpx.Request) -> httpx.Response:
        read.append(next(readings))
        return httpx.Response(200, text=HEADRACE % (10, 10 - read[-1]))

    async def settle() -> MetricsSnapshot:
        before = MetricsSnapshot((Sample("headrace_requests_offered_total", {"slo_class": "a"}, 0.0),))
        async with httpx.AsyncClient(base_url="http://x", transport=httpx.MockTransport(handle)) as http:
            return await scrape_settled(http, before)

    assert run_virtually(settle()).num_open == num_open
    assert abs(len(read) - num_readings) <= 1
