"""The options that describe classes: what they mean and how they are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from loadgen.class_mix import NO_CLASS, TokenRange, parse_class_mix
from loadgen.config import BenchConfig, BenchError
from loadgen.targets import Targets, parse_overrides


def test_no_class_option_is_one_unnamed_class() -> None:
    mix = parse_class_mix(BenchConfig("http://x", prompt_tokens="10-20", output_tokens="5"))
    assert not mix.names_class
    assert mix.names == (NO_CLASS,)
    assert (mix.classes[0].prompt_tokens, mix.classes[0].output_tokens) == (TokenRange(10, 20), TokenRange(5, 5))


def test_classes_take_shares_and_lengths_of_their_own() -> None:
    options = ("interactive:0.75,prompt=16-32", "batch:share=0.25,output=64", "standard")
    mix = parse_class_mix(BenchConfig("http://x", classes=options, prompt_tokens="100", output_tokens="8"))
    assert mix.names_class
    assert [(c.name, c.share) for c in mix.classes] == [("interactive", 0.75), ("batch", 0.25), ("standard", 1.0)]
    assert [c.prompt_tokens for c in mix.classes] == [TokenRange(16, 32), TokenRange(100, 100), TokenRange(100, 100)]
    assert [c.output_tokens for c in mix.classes] == [TokenRange(8, 8), TokenRange(64, 64), TokenRange(8, 8)]


def test_drawn_shares_are_those_asked_for() -> None:
    mix = parse_class_mix(BenchConfig("http://x", classes=("a:3", "b:1")))
    rng = random.Random(0)
    drawn = [mix.draw(rng).name for _ in range(4000)]
    assert 0.73 < drawn.count("a") / 4000 < 0.77


@pytest.mark.parametrize(
    ("option", "tells"),
    [
        (":0.5", "names no class"),
        ("a:0", "'0', it must be a number above 0"),
        ("a:-1", "above 0"),
        ("a:nan", "above 0"),
        ("a:0.5,0.5", "the share is given twice"),
        ("a:0.5,prompt=1,prompt=2", "prompt is given twice"),
        ("a:0.5,tfft=1", "unknown key 'tfft'"),
        ("a:prompt=0", "at least 1"),
        ("a:prompt=20-10", "LOW at most HIGH"),
        ("a:output=many", "a number of tokens"),
    ],
)
def test_a_class_that_cannot_be_read_is_refused(option: str, tells: str) -> None:
    with pytest.raises(BenchError, match=tells):
        parse_class_mix(BenchConfig("http://x", classes=(option,)))


@pytest.mark.parametrize(
    ("option", "tells"),
    [
        ("a:rate=0", "rate is '0', it must be a number above 0"),
        ("a:arrivals=trace", "arrivals is 'trace', it must be one of poisson, constant, gamma"),
        ("a:arrivals=poisson,cv=2", "cv is of gamma arrivals, not of poisson ones"),
        ("a:cv=inf", "cv is 'inf', it must be a number above 0"),
        ("a:ttft=soon", "ttft is 'soon': write a time above 0, such as 300ms or 2s"),
        ("a:tpot=0ms", "tpot is '0ms': write a time above 0"),
        ("a:turns=0", "turns is '0': it must be at least 1"),
        ("a:think=5-1", "think is '5-1': write a number of seconds"),
        ("a:prefix=-1", "prefix is '-1': write a number of tokens of at least 0"),
        ("a:header=x", "header is 'x': write NAME:VALUE"),
        ("a:header=x y:1", "header is 'x y:1': write NAME:VALUE"),
        ("a:service_tier=", "service_tier is empty"),
    ],
)
def test_a_key_with_a_wrong_value_is_refused(option: str, tells: str) -> None:
    with pytest.raises(BenchError, match=tells):
        parse_class_mix(BenchConfig("http://x", classes=(option,)))


def test_a_class_says_how_it_arrives_talks_is_judged_and_is_named() -> None:
    option = "a:2,rate=5,cv=2.5,prefix=64,turns=2-4,think=0.5-2,ttft=300ms,tpot=40,stall=1s,e2e=20s,header=X-Team:red"
    (a,) = parse_class_mix(BenchConfig("http://x", classes=(option,))).classes
    assert (a.share, a.rate_per_s, a.arrivals, a.cv, a.prefix_tokens) == (2.0, 5.0, "gamma", 2.5, 64)
    assert (a.turns, a.mean_turns, a.think_s) == (TokenRange(2, 4), 3.0, (0.5, 2.0))
    assert a.targets == Targets(0.3, 0.04, 1.0, 20.0)
    assert (a.header, a.service_tier) == (("x-team", "red"), None)
    assert a.has_own_arrivals


def test_targets_of_a_class_stand_behind_those_of_slo() -> None:
    config = BenchConfig("http://x", classes=("a:ttft=1s,e2e=9s", "b"), slo=("a:ttft_ms=500",))
    mix = parse_class_mix(config)
    overrides = parse_overrides(config.slo, mix.names, mix.targets)
    assert overrides == {"a": Targets(ttft_s=0.5, e2e_s=9.0)}


def test_arrivals_of_a_class_need_an_open_loop() -> None:
    with pytest.raises(BenchError, match="--concurrency sends when an answer is there"):
        parse_class_mix(BenchConfig("http://x", classes=("a:rate=1",), concurrency=2))


def test_a_verb_may_take_some_keys_alone() -> None:
    with pytest.raises(BenchError, match=r"--mix 'a:rate=1': unknown key 'rate': the known ones are share, prompt"):
        parse_class_mix(BenchConfig("", classes=("a:rate=1",)), "--mix", ("share", "prompt"))


@pytest.mark.parametrize(
    ("options", "tells"),
    [
        ({"arrivals": "poisson"}, "the arrivals are poisson: give --arrivals gamma"),
        ({"arrivals": "constant", "classes": ("a:arrivals=gamma,cv=2",)}, "the arrivals are constant"),
        ({"trace_path": "t.jsonl"}, "the arrivals are trace"),
        ({"concurrency": 2}, "--burstiness is 0.25, but --concurrency"),
    ],
)
def test_a_burstiness_that_nothing_has_is_refused(options: dict[str, Any], tells: str) -> None:
    with pytest.raises(BenchError, match=tells):
        parse_class_mix(BenchConfig("http://x", burstiness=0.25, **options))


def test_burstiness_acts_by_itself() -> None:
    assert BenchConfig("http://x", burstiness=0.25).arrival_kind == "gamma"
    assert BenchConfig("http://x").arrival_kind == "poisson"
    parse_class_mix(BenchConfig("http://x", burstiness=0.25, arrivals="poisson", classes=("a:arrivals=gamma", "b")))


def test_a_share_is_given_once() -> None:
    with pytest.raises(BenchError, match=r"the share is given twice, as '0.5' and as share='0.3'"):
        parse_class_mix(BenchConfig("http://x", classes=("a:0.5,share=0.3",)))


def test_class_names_must_differ() -> None:
    with pytest.raises(BenchError, match="names repeat: a, a"):
        parse_class_mix(BenchConfig("http://x", classes=("a:1", "a:2")))


@pytest.mark.parametrize(
    ("options", "tells"),
    [
        ({"rate": 0.0}, "rate is 0.0, it must be at least"),
        ({"concurrency": 0}, "concurrency is 0, it must be at least 1"),
        ({"requests": 0}, "requests is 0"),
        ({"duration_s": float("nan")}, "duration is nan"),
        ({"rate": 1.0, "concurrency": 1}, "exclude each other"),
        ({"cancel_share": 1.5}, "cancel_share is 1.5, it must be at most 1.0"),
        ({"warm_up_s": -1.0}, "warm-up is -1.0, it must be at least 0"),
        ({"duration_s": 2.0, "warm_up_s": 2.0}, r"leave nothing of --duration \(2 s\) to count"),
        (
            {"duration_s": 2.0, "warm_up_s": 1.0, "cool_down_s": 1.5},
            r"--warm-up \(1 s\) and --cool-down \(1.5 s\) leave nothing",
        ),
        (
            {"url": "http://x/v1/chat/completions/"},
            "ends in /v1/chat/completions: give the server's own, http://x, and",
        ),
        ({"api_key": ""}, "api-key is empty: is its variable right"),
        ({"api_key": "a\nb"}, "api-key holds characters that no header may have"),
        ({"arrivals": "trace"}, "there is no trace: give one with --trace"),
    ],
)
def test_a_config_out_of_bounds_is_refused(options: dict[str, Any], tells: str) -> None:
    with pytest.raises(ValueError, match=tells):
        BenchConfig(**{"url": "http://x", **options})


def test_a_run_is_bounded_by_default_and_by_its_duration_alone_where_that_is_given() -> None:
    assert BenchConfig("http://x").max_requests == 100
    assert BenchConfig("http://x", duration_s=5.0).max_requests is None
    assert BenchConfig("http://x", duration_s=5.0, requests=7).max_requests == 7
