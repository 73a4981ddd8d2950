"""A runner that fails ends what it must and nothing else."""

from __future__ import annotations

import pytest

from engine.core import MAX_CONSECUTIVE_FAILURES
from engine.errors import RepeatedStepFailure
from tests.engine_harness import EngineHarness, add_group
from tests.fakes import CRASH_TOKEN_ID, ERROR_TOKEN_ID, fake_output

PROMPT = tuple(range(20, 33))


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    harness = EngineHarness(max_num_seqs=2)
    harness.runner.fail_steps = {2}
    harness.run(*[add_group(f"g{i}", PROMPT, max_tokens=5) for i in range(3)])
    assert harness.finish_reasons == {("g0", 0): "error", ("g1", 0): "error", ("g2", 0): "length"}
    assert len(harness.tokens["g0", 0]) == 2, "tokens of the steps before stand"
    assert tuple(harness.tokens["g2", 0]) == fake_output(PROMPT, 5)
    assert "g0/0" in caplog.text and "InjectedFault" in caplog.text
    harness.assert_nothing_is_left()


def test_blocks_of_a_failed_step_are_not_found_by_others() -> None:
    harness = EngineHarness()
    harness.runner.fail_steps = {0}
    harness.run(add_group("failed", PROMPT))
    harness.run(add_group("next", PROMPT))
    assert harness.admitted["next"][0].num_cached_tokens == 0
    assert tuple(harness.tokens["next", 0]) == fake_output(PROMPT, 4)


def test_a_request_that_fails_alone_leaves_the_others() -> None:
    harness = EngineHarness()
    harness.run(add_group("good", PROMPT), add_group("bad", (ERROR_TOKEN_ID, *PROMPT)))
    assert harness.finish_reasons == {("good", 0): "length", ("bad", 0): "error"}
    assert tuple(harness.tokens["good", 0]) == fake_output(PROMPT, 4) and ("bad", 0) in harness.tokens
    harness.core.raise_if_failing()
    harness.assert_nothing_is_left()


def test_steps_that_fail_in_a_row_end_the_engine() -> None:
    harness = EngineHarness()
    for i in range(MAX_CONSECUTIVE_FAILURES):
        harness.core.raise_if_failing()
        harness.run(add_group(f"g{i}", (CRASH_TOKEN_ID,)))
    with pytest.raises(RepeatedStepFailure, match="3 steps in a row"):
        harness.core.raise_if_failing()


def test_a_step_that_works_starts_the_count_of_failures_over() -> None:
    harness = EngineHarness()
    for i in range(2 * MAX_CONSECUTIVE_FAILURES):
        harness.run(add_group(f"bad{i}", (CRASH_TOKEN_ID,)))
        harness.run(add_group(f"good{i}", PROMPT))
        harness.core.raise_if_failing()
    assert harness.finish_reasons["good5", 0] == "length" and harness.finish_reasons["bad5", 0] == "error"


@pytest.mark.parametrize("prompts", [((),), (), ((20, 2**31),)])
def test_a_group_that_makes_no_sense_is_refused_alone(prompts: tuple[tuple[int, ...], ...]) -> None:
    harness = EngineHarness()
    outputs = harness.turn(add_group("good", PROMPT), add_group("bad", *prompts))
    assert [(refused.group_id, refused.reason) for refused in outputs.refused] == [("bad", "never_fits")]
    harness.run()
    assert tuple(harness.tokens["good", 0]) == fake_output(PROMPT, 4)
    harness.assert_nothing_is_left()
