"""The load generator against servers whose answers are known beforehand, on a virtual clock: queues and schedules."""

from __future__ import annotations

import asyncio
import itertools
import statistics

import pytest

from loadgen.config import BenchConfig
from loadgen.phases import Phase
from loadgen.result import BenchResult, find_invalid
from loadgen.runner import _LEAD_S
from loadgen.trace import TraceEnd
from tests.fake_transport import Posted, QueueTransport, Service
from tests.saved_runs import Answer, make_run
from tests.virtual_bench import bench_virtually
from tests.virtual_loop import VirtualLoop

_STUDENT_T_99 = 2.861
"""Two-sided 99 % quantile of Student's t for 19 degrees of freedom: 20 batches."""


def _always(first_s: float, gap_s: float = 0.0) -> QueueTransport:
    return QueueTransport(lambda _: Service(first_s, gap_s))


def _ttfts_s(result: BenchResult) -> list[float]:
    return [trace.chunks[0].time_s - trace.intended_s for trace, _ in result.judged]


def _lindley_waits_s(result: BenchResult, service_s: float) -> list[float]:
    """Waiting times by Lindley's recursion over the arrivals: what a queue of one server must have made of them."""
    waits = [0.0]
    due = [trace.intended_s for trace, _ in result.judged]
    for earlier, later in itertools.pairwise(due):
        waits.append(max(waits[-1] + service_s - (later - earlier), 0.0))
    return waits


@pytest.mark.parametrize(("load", "seed"), [(0.5, 1), (0.8, 2)])
def test_the_mean_wait_in_an_m_d_1_queue_is_that_of_pollaczek_and_khinchine(load: float, seed: int) -> None:
    """Poisson arrivals, constant service D, one server: the mean wait is load x D / (2 (1 - load))."""
    service_s = 0.25
    config = BenchConfig("http://x", rate=load / service_s, requests=2000, output_tokens="1", seed=seed)
    result = bench_virtually(config, lambda: _always(service_s))
    waits = [ttft_s - service_s for ttft_s in _ttfts_s(result)]
    assert waits == pytest.approx(_lindley_waits_s(result, service_s), abs=1e-6)

    batches = [statistics.fmean(waits[i : i + 100]) for i in range(0, 2000, 100)]
    half_width = _STUDENT_T_99 * statistics.stdev(batches) / len(batches) ** 0.5
    expected = load * service_s / (2.0 * (1.0 - load))
    assert abs(statistics.fmean(batches) - expected) < half_width
    assert half_width < expected, "the interval tells something"


def test_latency_counts_from_the_schedule_while_the_queue_grows_without_end() -> None:
    """Twice as many as can be served: request n waits n x (service - gap), and none of it is hidden."""
    config = BenchConfig("http://x", rate=2.0, arrivals="constant", requests=50, output_tokens="1")
    result = bench_virtually(config, lambda: _always(1.0))
    assert _ttfts_s(result) == pytest.approx([1.0 + 0.5 * index for index in range(50)])
    assert result.overall.send_lag is not None
    assert result.overall.send_lag.max_s == 0.0


def test_attainment_is_exact_and_by_class() -> None:
    """Two classes, each with an arrival every half second, which is as long as one service: the wait of request n is
    n / 2 services less the time since the first arrival, and crosses 3 s at a known n."""
    classes = ("a:rate=2,ttft=3s", "b:rate=2,ttft=9999s")
    config = BenchConfig("http://x", arrivals="constant", requests=60, output_tokens="1", classes=classes)
    result = bench_virtually(config, lambda: _always(0.5))
    ttfts = _ttfts_s(result)
    assert ttfts == pytest.approx([0.5 * (n + 1) - 0.5 * (n // 2) for n in range(60)])
    by_name = {summary.name: summary for summary in result.classes}
    num_met = sum(0.5 * (n + 1) - 0.5 * (n // 2) <= 3.0 for n in range(0, 60, 2))
    assert by_name["a"].num_sent == by_name["b"].num_sent == 30
    assert by_name["a"].offered_attainment == num_met / 30
    assert 0 < num_met < 30
    assert by_name["b"].offered_attainment == 1.0
    assert result.overall.offered_attainment == (num_met + 30) / 60
    assert result.overall.goodput_per_s == pytest.approx((num_met + 30) / 14.5)


def test_refusals_are_misses_and_are_not_sent_again() -> None:
    def serve(posted: Posted) -> Service:
        return Service(0.1, status=429 if round(posted.time_s) % 4 == 0 else 200)

    config = BenchConfig("http://x", rate=1.0, arrivals="constant", requests=40, slo=("default:ttft_ms=200",))
    transports: list[QueueTransport] = []

    def make() -> QueueTransport:
        transports.append(QueueTransport(serve))
        return transports[0]

    result = bench_virtually(config, make)
    counts = {outcome.value: count for outcome, count in result.overall.outcomes.items() if count}
    assert counts == {"met": 30, "refused": 10}
    assert result.overall.offered_attainment == 0.75
    assert result.overall.admitted_attainment == 1.0
    assert len(transports[0].posted) == 40


def test_a_late_client_is_measured_exactly_and_spoils_the_run() -> None:
    """The client stands still for 2.5 s: what is due meanwhile leaves late, by exactly what is left of them."""

    def make() -> QueueTransport:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_at(_LEAD_S + 3.5, loop.stand_still, 2.5)
        return QueueTransport(lambda _: Service(0.125), num_servers=9)

    config = BenchConfig("http://x", rate=1.0, arrivals="constant", requests=10, slo=("default:ttft_ms=1000",))
    result = bench_virtually(config, make)
    lags = [trace.send_lag_s for trace, _ in result.judged]
    assert lags == pytest.approx([0.0, 0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert _ttfts_s(result) == pytest.approx([lag_s + 0.125 for lag_s in lags])
    assert result.overall.offered_attainment == 0.8
    assert not result.is_valid
    assert "late at p99" in result.invalid_reasons[0]


def test_only_the_steady_window_counts_though_all_is_sent() -> None:
    """The server is slow for the first ten seconds and the last five, and fast between."""

    def serve(posted: Posted) -> Service:
        return Service(0.05 if 10.0 <= posted.time_s - 0.05 < 25.0 else 0.9)

    config = BenchConfig(
        "http://x",
        rate=1.0,
        arrivals="constant",
        duration_s=30.0,
        warm_up_s=10.0,
        cool_down_s=5.0,
        slo=("default:ttft_ms=100",),
    )
    result = bench_virtually(config, lambda: QueueTransport(serve))
    assert result.num_by_phase == {Phase.WARM_UP: 10, Phase.STEADY: 15, Phase.COOL_DOWN: 5}
    assert len(result.judged) == 30
    assert result.overall.num_sent == len(result.counted) == 15
    assert result.overall.offered_attainment == 1.0
    assert result.overall.goodput_per_s == pytest.approx(1.0)
    everything = bench_virtually(
        BenchConfig("http://x", rate=1.0, arrivals="constant", duration_s=30.0, slo=("default:ttft_ms=100",)),
        lambda: QueueTransport(serve),
    )
    assert everything.overall.offered_attainment == 0.5


@pytest.mark.parametrize(("num_gone", "is_valid"), [(2, True), (3, False), (10, False)])
def test_a_run_at_whose_end_no_server_was_left_is_invalid(num_gone: int, is_valid: bool) -> None:
    traces = tuple(trace for trace, _ in make_run([Answer()] * 10).judged)
    for k, trace in enumerate(traces):
        if k >= 10 - num_gone or k == 1:
            trace.end, trace.error_code = TraceEnd.FAILED, "ConnectError"
    reasons = find_invalid(traces, 1e12)
    assert (reasons == ()) == is_valid
    if num_gone == 3:
        assert reasons == ("the last 3 of 10 requests could not connect: the server went away during the run; see its log, and run again",)  # fmt: skip  # noqa: E501
    elif num_gone == 10:
        assert reasons == ("every request failed",)


def test_a_run_without_a_steady_window_is_invalid() -> None:
    config = BenchConfig("http://x", rate=1.0, arrivals="constant", requests=5, warm_up_s=100.0)
    result = bench_virtually(config, lambda: _always(0.1))
    assert result.overall.num_sent == 0
    assert result.invalid_reasons == (
        "none of the 5 requests is due between warm-up and cool-down: send for longer, or shorten these",
    )


def test_a_closed_loop_is_as_fast_as_its_clients_and_no_faster() -> None:
    config = BenchConfig("http://x", concurrency=3, requests=30, output_tokens="5")
    result = bench_virtually(config, lambda: QueueTransport(lambda _: Service(1.0, 0.25), num_servers=8))
    sent = sorted(trace.sent_s - result.run.started_s for trace, _ in result.judged)
    assert sent == pytest.approx([2.0 * (index // 3) for index in range(30)])


def test_clients_that_leave_are_counted_apart_and_free_the_server() -> None:
    config = BenchConfig(
        "http://x", rate=1.0, arrivals="constant", requests=200, output_tokens="8", cancel_share=0.25,
        slo=("default:ttft_ms=500",), seed=5,
    )  # fmt: skip
    transports: list[QueueTransport] = []

    def make() -> QueueTransport:
        transports.append(QueueTransport(lambda _: Service(0.125, 0.0625), num_servers=9))
        return transports[0]

    result = bench_virtually(config, make)
    leavers = [trace for trace, _ in result.judged if trace.planned.cancel_after_tokens is not None]
    assert 30 <= len(leavers) <= 70
    for trace in leavers:
        assert trace.end is TraceEnd.CANCELLED
        assert trace.is_left
        assert len(trace.chunks) == trace.planned.cancel_after_tokens
        assert trace.finished_s == trace.chunks[-1].time_s
    assert transports[0].num_left == len(leavers)
    counts = {outcome.value: count for outcome, count in result.overall.outcomes.items() if count}
    assert counts == {"met": 200 - len(leavers), "cancelled": len(leavers)}
    assert result.overall.offered_attainment == 1.0
