"""The options that describe classes: what they mean and how they are refused."""

from __future__ import annotations

import random

import pytest

from loadgen.class_mix import NO_CLASS, TokenRange, parse_class_mix
from loadgen.config import BenchConfig, BenchError


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
    ],
)
def test_a_config_out_of_bounds_is_refused(options: dict[str, float], tells: str) -> None:
    with pytest.raises(ValueError, match=tells):
        BenchConfig("http://x", **options)  # type: ignore[arg-type]


def test_a_run_is_bounded_by_default_and_by_its_duration_alone_where_that_is_given() -> None:
    assert BenchConfig("http://x").max_requests == 100
    assert BenchConfig("http://x", duration_s=5.0).max_requests is None
    assert BenchConfig("http://x", duration_s=5.0, requests=7).max_requests == 7
