"""Times of a coarse clock."""

from __future__ import annotations

import random

import pytest

from loadgen.traces.ties import is_stepped, num_tied, spread_ties
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_request import TraceRequest

# As Mooncake's conversations: steps of 3 s with a jitter of 1 ms, and a silence.
STEPS_S = (0.0, 3.0, 5.999, 8.999, 30.0)


def stepped(num_per_step: int) -> list[TraceRequest]:
    return [TraceRequest(t, 10 + index, 5) for t in STEPS_S for index in range(num_per_step)]


def test_times_are_spread_inside_their_own_step_and_no_further() -> None:
    spread, transform = spread_ties(stepped(400), seed=3)
    times = [request.t_s for request in spread]
    assert times == sorted(times) and len(set(times)) == len(times)
    for start_s, end_s in zip(STEPS_S, (3.0, 5.999, 8.999, 11.999, 33.0), strict=True):
        inside = [t for t in times if start_s <= t <= end_s]
        assert len(inside) == 400
        mean_s = sum(inside) / 400
        # Uniform: the mean of 400 lies within five standard errors of the middle.
        assert abs(mean_s - (start_s + end_s) / 2) < 5 * (end_s - start_s) / (12 * 400) ** 0.5
    assert transform.name == "spread_ties"
    assert transform.details == {"step_s": 3.0, "tied": 2000, "seed": 3}
    assert sorted(request.in_tokens for request in spread) == sorted(request.in_tokens for request in stepped(400))


def test_the_seed_decides() -> None:
    assert spread_ties(stepped(5), seed=1) == spread_ties(stepped(5), seed=1)
    assert spread_ties(stepped(5), seed=1)[0] != spread_ties(stepped(5), seed=2)[0]


def test_chance_ties_are_no_steps() -> None:
    rng = random.Random(0)
    requests = [TraceRequest(t / 1000, 5, 5) for t in sorted(rng.randrange(200_000) for _ in range(500))]
    assert 0 < num_tied(requests) < 250 and not is_stepped(requests)
    with pytest.raises(TraceError, match="there is no step to spread them in; leave out --spread-ties"):
        spread_ties(requests, seed=0)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([TraceRequest(1.0, 5, 5)] * 4, "4 of 4 .* at 1 distinct times"),
        ([], "0 of 0"),
        ([*stepped(3), TraceRequest(30.0, 5, 5, turn=1, after=0)], "wait for others"),
    ],
)
def test_what_cannot_be_spread(requests: list[TraceRequest], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        spread_ties(requests, seed=0)
