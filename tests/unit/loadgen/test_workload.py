"""What is sent: determined by the seed, and with prompts that a prefix cache cannot help with."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import statistics
from typing import Any

import pytest

from loadgen.calibration import Calibration
from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchConfig
from loadgen.words import WORDS
from loadgen.workload import PlannedRequest, Workload


def _plan(**options: Any) -> list[PlannedRequest]:
    config = BenchConfig("http://x", **options)
    return list(Workload(config, parse_class_mix(config)).requests())


def test_the_same_seed_plans_the_same_requests() -> None:
    options: dict[str, Any] = {"requests": 20, "classes": ("a:1,prompt=5-50", "b:1"), "rate": 3.0}
    assert _plan(**options) == _plan(**options)
    assert _plan(**options) != _plan(**options, seed=1)


def test_words_are_many_and_distinct() -> None:
    assert len(WORDS) == len(set(WORDS)) > 256
    assert all(word.isalpha() and word.islower() for word in WORDS)


def test_prompts_have_the_planned_number_of_words() -> None:
    for planned in _plan(requests=50, prompt_tokens="1-40", output_tokens="2-9"):
        assert len(planned.prompt.split(" ")) == planned.num_prompt_tokens
        assert 1 <= planned.num_prompt_tokens <= 40
        assert 2 <= planned.num_output_tokens <= 9


def test_no_two_prompts_begin_alike() -> None:
    heads = [tuple(planned.prompt.split(" ")[:3]) for planned in _plan(requests=2000, prompt_tokens="8")]
    assert len(set(heads)) == 2000
    assert all(earlier[0] != later[0] for earlier, later in itertools.pairwise(heads))


def test_a_shared_prefix_comes_before_the_unique_part() -> None:
    plans = _plan(requests=10, prompt_tokens="8", shared_prefix_tokens=20)
    prompts = [planned.prompt.split(" ") for planned in plans]
    assert len({tuple(words[:20]) for words in prompts}) == 1
    assert len({tuple(words[20:23]) for words in prompts}) == 10
    assert {planned.num_prompt_tokens for planned in plans} == {28}


def test_a_change_of_one_random_choice_leaves_the_others_alone() -> None:
    slow, fast = _plan(requests=30, rate=1.0), _plan(requests=30, rate=100.0)
    assert [p.prompt for p in slow] == [p.prompt for p in fast]
    longer = _plan(requests=30, rate=1.0, prompt_tokens="300")
    assert [p.offset_s for p in slow] == [p.offset_s for p in longer]


def test_an_open_loop_ends_with_its_duration() -> None:
    offsets = [planned.offset_s for planned in _plan(rate=10.0, duration_s=2.0, arrivals="constant")]
    assert offsets == [i / 10.0 for i in range(20)]
    assert len(_plan(rate=10.0, duration_s=2.0, requests=5)) == 5


def test_a_closed_loop_has_no_schedule_and_ends_with_its_number() -> None:
    assert [planned.offset_s for planned in _plan(concurrency=3, requests=4)] == [None] * 4
    config = BenchConfig("http://x", concurrency=3, duration_s=1.0)
    endless = Workload(config, parse_class_mix(config)).requests()
    assert len(list(itertools.islice(endless, 500))) == 500


def test_a_salt_changes_the_words_of_prompts_and_nothing_else() -> None:
    plain = BenchConfig("http://x", requests=30, shared_prefix_tokens=5, classes=("a:1,prompt=20-40", "b:2"))
    salted = dataclasses.replace(plain, prompt_salt=7)
    runs = [list(Workload(config, parse_class_mix(config)).requests()) for config in (plain, salted)]
    for before, after in zip(*runs, strict=True):
        assert before.prompt.split()[:5] == after.prompt.split()[:5]
        assert before.prompt.split()[5:8] != after.prompt.split()[5:8]
        assert dataclasses.replace(before, prompt="") == dataclasses.replace(after, prompt="")


def test_classes_with_arrivals_of_their_own_do_not_depend_on_each_other() -> None:
    steady, bursty = "a:rate=2,arrivals=constant", "b:rate=8,cv=3"
    together = _plan(duration_s=200.0, classes=(steady, bursty))
    assert [p.offset_s for p in together] == sorted(p.offset_s or 0.0 for p in together)
    of_a = [p.offset_s for p in together if p.slo_class == "a"]
    assert of_a == [i / 2.0 for i in range(400)]
    of_b = [p.offset_s for p in together if p.slo_class == "b"]
    assert of_b == [p.offset_s for p in _plan(duration_s=200.0, classes=("a:rate=40", bursty)) if p.slo_class == "b"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(offset or 0.0 for offset in of_b)]
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) > 2.0


def test_classes_without_a_rate_divide_that_of_the_run() -> None:
    plans = _plan(duration_s=100.0, rate=8.0, arrivals="constant", classes=("a:rate=2", "b:3", "c:1"))
    counts = collections.Counter(p.slo_class for p in plans)
    assert counts == {"a": 200, "b": 600, "c": 200}


def test_bursts_have_the_rate_of_the_run() -> None:
    offsets = [p.offset_s or 0.0 for p in _plan(rate=10.0, requests=4000, arrivals="gamma", burstiness=0.25)]
    assert offsets == [p.offset_s or 0.0 for p in _plan(rate=10.0, requests=4000, burstiness=0.25)], "by itself, too"
    gaps = [later - earlier for earlier, later in itertools.pairwise(offsets)]
    assert 4000 / offsets[-1] == pytest.approx(10.0, rel=0.1)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(2.0, rel=0.1), "1 / sqrt(burstiness)"


def test_a_class_has_its_own_shared_prefix() -> None:
    plans = _plan(requests=60, prompt_tokens="8", shared_prefix_tokens=5, classes=("a:prefix=20", "b:1", "c:prefix=0"))
    words = {name: [p.prompt.split(" ") for p in plans if p.slo_class == name] for name in ("a", "b", "c")}
    assert len({tuple(each[:20]) for each in words["a"]}) == 1
    assert len({tuple(each[20:23]) for each in words["a"]}) == len(words["a"])
    assert len({tuple(each[:5]) for each in words["b"]}) == 1
    assert len({tuple(each[:3]) for each in words["c"]}) == len(words["c"])
    assert {len(each) for each in words["a"]} == {28}
    assert {p.num_prompt_tokens for p in plans if p.slo_class == "a"} == {28}


def test_lengths_follow_the_calibration() -> None:
    config = BenchConfig("http://x", requests=5, prompt_tokens="300", shared_prefix_tokens=150)
    plans = list(Workload(config, parse_class_mix(config), Calibration(1.5, 9)).requests())
    assert {len(p.prompt.split(" ")) for p in plans} == {300}
    assert {p.num_prompt_tokens for p in plans} == {450}


def test_a_share_of_requests_is_left_within_its_answer() -> None:
    plans = _plan(requests=2000, output_tokens="10", cancel_share=0.2)
    left = [p.cancel_after_tokens for p in plans if p.cancel_after_tokens is not None]
    assert len(left) / 2000 == pytest.approx(0.2, abs=0.03)
    assert set(left) == set(range(1, 10))
    assert all(p.cancel_after_tokens is None for p in _plan(requests=50, output_tokens="1", cancel_share=1.0))
    assert [p.prompt for p in plans[:50]] == [p.prompt for p in _plan(requests=50, output_tokens="10")]
