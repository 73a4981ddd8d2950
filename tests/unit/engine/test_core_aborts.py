"""Cancellation: one idempotent path, legal in every state."""

from __future__ import annotations

import pytest

from engine.messages import AbortChoices
from tests.engine_harness import EngineHarness, add_group
from tests.fakes import fake_output

PROMPT = tuple(range(20, 33))
LONG_PROMPT = tuple(range(20, 120))


def _in_state(harness: EngineHarness, state: str) -> None:
    """Bring group "g" into a state; other requests keep the instance busy."""
    if state == "waiting":
        harness.turn(*[add_group(f"busy{i}", PROMPT, max_tokens=30) for i in range(harness.config.max_num_seqs)])
        harness.turn(add_group("g", PROMPT, n=2, max_tokens=30))
        assert "g" not in harness.admitted
    elif state == "prefilling":
        harness.turn(add_group("g", LONG_PROMPT, n=2, max_tokens=30))
        assert "g" in harness.admitted and ("g", 0) not in harness.tokens
    elif state == "decoding":
        harness.turn(add_group("g", PROMPT, n=2, max_tokens=30))
        harness.turn()
        assert harness.tokens["g", 1]
    elif state == "preempted":
        harness.turn(add_group("g", LONG_PROMPT, n=2, max_tokens=30, slo_class="batch"))
        harness.turn(*[add_group(f"urgent{i}", LONG_PROMPT[i:], slo_class="realtime") for i in range(2)])
        assert harness.scheduler.stats().num_preemptions == 1
    elif state == "finished":
        harness.run(add_group("g", PROMPT, n=2, max_tokens=1))


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "preempted", "finished", "unknown"])
def test_a_group_can_be_aborted_in_every_state_more_than_once(state: str) -> None:
    harness = EngineHarness(num_blocks=40)
    _in_state(harness, state)
    abort = AbortChoices(group_id="g")
    outputs = harness.turn(abort, abort)
    ended = [delta.choice for delta in outputs.deltas if delta.group_id == "g"]
    assert ended == ([0, 1] if state not in ("finished", "unknown") else [])
    assert not harness.turn(abort).refused
    harness.run()
    assert all(reason == "abort" for (group, _), reason in harness.finish_reasons.items() if group == "g") or (
        state == "finished"
    )
    harness.assert_nothing_is_left()


def test_a_group_that_arrives_with_its_abort_never_starts() -> None:
    harness = EngineHarness()
    outputs = harness.turn(add_group("g", PROMPT), AbortChoices(group_id="g"))
    assert [d.finish_reason for d in outputs.deltas] == ["abort"] and not outputs.admitted
    harness.assert_nothing_is_left()


def test_ids_are_compared_whole() -> None:
    harness = EngineHarness()
    harness.turn(*[add_group(name, PROMPT, max_tokens=5) for name in ("r1", "r10", "r11")])
    harness.run(AbortChoices(group_id="r1"))
    assert {name: harness.finish_reasons[name, 0] for name in ("r1", "r10", "r11")} == {
        "r1": "abort",
        "r10": "length",
        "r11": "length",
    }


@pytest.mark.parametrize("turns_before", [1, 2, 4])
def test_choices_go_on_without_the_one_that_led_them(turns_before: int) -> None:
    harness = EngineHarness(max_num_batched_tokens=40)
    harness.turn(add_group("g", LONG_PROMPT, n=3, max_tokens=4))
    for _ in range(turns_before - 1):
        harness.turn()
    harness.run(AbortChoices(group_id="g", choices=(0,)))
    assert harness.finish_reasons == {("g", 0): "abort", ("g", 1): "length", ("g", 2): "length"}
    for choice in (1, 2):
        assert tuple(harness.tokens["g", choice]) == fake_output(LONG_PROMPT, 4, choice)
    harness.assert_nothing_is_left()


def test_unused_tokens_of_an_aborted_choice_count_as_wasted() -> None:
    harness = EngineHarness()
    harness.turn(add_group("g", PROMPT, n=2, max_tokens=30))
    for _ in range(5):
        harness.turn()
    num_sampled = {choice: len(harness.tokens["g", choice]) for choice in (0, 1)}
    abort = AbortChoices(group_id="g", choices=(0, 7), kept_tokens={0: num_sampled[0] - 2})
    assert harness.turn(abort).stats.wasted_tokens == 2
    outputs = harness.turn(AbortChoices(group_id="g"))
    assert outputs.stats.wasted_tokens == 2 + len(harness.tokens["g", 1]) > num_sampled[1]
    harness.assert_nothing_is_left()


def test_a_thousand_starts_and_aborts_leave_nothing() -> None:
    harness = EngineHarness()
    for i in range(1000):
        harness.core.turn([add_group(f"g{i}", PROMPT[: 1 + i % 13], n=1 + i % 3)])
        harness.core.turn([AbortChoices(group_id=f"g{i}")])
    harness.core.check()
    harness.assert_nothing_is_left()
