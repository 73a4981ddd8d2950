"""What is sent: determined by the seed, and with prompts that a prefix cache cannot help with."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

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
