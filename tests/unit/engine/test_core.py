"""EngineCore with the real scheduler: tokens, finish reasons, verdicts, cancellation."""

from __future__ import annotations

import pytest

from engine.messages import AbortChoices
from tests.engine_harness import EngineHarness, add_group
from tests.fakes import EOS_TOKEN_ID, fake_output

PROMPT = tuple(range(20, 33))


def test_each_choice_has_its_own_prompts_tokens() -> None:
    harness = EngineHarness()
    prompts = (PROMPT, PROMPT[:3], PROMPT[2:10])
    harness.run(add_group("g", *prompts, n=2, max_tokens=6))
    assert {key: tuple(tokens) for key, tokens in harness.tokens.items()} == {
        ("g", choice): fake_output(prompts[choice // 2], 6, choice) for choice in range(6)
    }
    assert set(harness.finish_reasons.values()) == {"length"}
    harness.assert_nothing_is_left()


def test_many_groups_under_preemption_keep_their_tokens() -> None:
    harness = EngineHarness(num_blocks=10, max_num_seqs=4)
    prompts = {f"g{i}": tuple(range(20 + i, 26 + i)) for i in range(8)}
    outputs = harness.run(*[add_group(name, prompt, max_tokens=12) for name, prompt in prompts.items()])
    assert outputs.stats.num_preemptions > 0 and outputs.stats.recomputed_tokens > 0
    for name, prompt in prompts.items():
        assert tuple(harness.tokens[name, 0]) == fake_output(prompt, 12)
    harness.assert_nothing_is_left()


def test_choices_of_one_prompt_share_its_blocks() -> None:
    harness = EngineHarness()
    harness.turn(add_group("g", PROMPT, n=4, max_tokens=3))
    harness.turn()
    used = harness.scheduler.stats().num_blocks_used
    assert used < 4 * 4, f"{used} blocks are used by 4 choices of a prompt of 4 blocks"
    harness.run()
    assert harness.tokens == {("g", choice): list(fake_output(PROMPT, 3, choice)) for choice in range(4)}


def test_prefix_cache_hits_are_told_and_bound_to_the_salt() -> None:
    harness = EngineHarness()
    harness.run(add_group("cold", PROMPT))
    harness.run(add_group("warm", PROMPT), add_group("salted", PROMPT, cache_salt="other"))
    assert harness.admitted["cold"][0].num_cached_tokens == 0
    assert harness.admitted["warm"][0].num_cached_tokens == 12
    assert harness.admitted["salted"][0].num_cached_tokens == 0
    assert tuple(harness.tokens["warm", 0]) == tuple(harness.tokens["salted", 0]) == fake_output(PROMPT, 4)


def test_cached_tokens_of_a_group_are_summed_over_its_prompts() -> None:
    harness = EngineHarness()
    other = tuple(range(50, 59))
    harness.run(add_group("cold", PROMPT, other))
    harness.run(add_group("warm", PROMPT, other, n=2))
    assert harness.admitted["warm"][-1].num_cached_tokens == 12 + 8
    assert len(harness.admitted["warm"]) <= 2, "sent for choices that look nothing up"


def test_a_generated_block_is_found_by_the_next_turn_of_a_chat() -> None:
    harness = EngineHarness()
    harness.run(add_group("first", PROMPT, max_tokens=8))
    follow_up = PROMPT + fake_output(PROMPT, 8) + (40, 41)
    harness.run(add_group("second", follow_up))
    assert harness.admitted["second"][0].num_cached_tokens == 20, "the last output token has no keys and values"
    assert tuple(harness.tokens["second", 0]) == fake_output(follow_up, 4)


def test_a_stop_token_ends_its_choice_and_is_its_last_token() -> None:
    harness = EngineHarness()
    stop = fake_output(PROMPT, 3)[2]
    harness.run(add_group("g", PROMPT, max_tokens=9, stop_token_ids=(stop,)))
    assert tuple(harness.tokens["g", 0]) == fake_output(PROMPT, 3)
    assert harness.finish_reasons["g", 0] == "stop" and harness.stop_token_ids["g", 0] == stop
    harness.assert_nothing_is_left()


@pytest.mark.parametrize(("ignore_eos", "reason"), [(False, "stop"), (True, "length")])
def test_end_of_sequence_stops_unless_ignored(ignore_eos: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.fake_token", lambda context, choice: EOS_TOKEN_ID)
    harness = EngineHarness()
    harness.run(add_group("g", PROMPT, max_tokens=3, ignore_eos=ignore_eos))
    assert harness.finish_reasons["g", 0] == reason
    assert harness.stop_token_ids["g", 0] == (None if ignore_eos else EOS_TOKEN_ID)
    assert len(harness.tokens["g", 0]) == (3 if ignore_eos else 1)


def test_no_output_tokens_means_the_prompt_alone_is_computed() -> None:
    harness = EngineHarness()
    harness.run(add_group("g", PROMPT, max_tokens=0, num_prompt_logprobs=0))
    assert harness.tokens["g", 0] == [] and harness.finish_reasons["g", 0] == "length"
    assert [p.token_id for p in harness.prompt_logprobs["g", 0]] == list(PROMPT[1:])
    harness.assert_nothing_is_left()


def test_prompt_logprobs_come_once_for_each_position_and_choice() -> None:
    prompt = tuple(range(20, 110))
    harness = EngineHarness(max_num_batched_tokens=16)
    harness.run(add_group("before", prompt), add_group("g", prompt, n=2, num_prompt_logprobs=1, max_tokens=2))
    for choice in (0, 1):
        assert [p.token_id for p in harness.prompt_logprobs["g", choice]] == list(prompt[1:])
        assert [p.logprob for p in harness.prompt_logprobs["g", choice]] == [-row / 1000.0 for row in range(89)]
    assert harness.admitted["g"][0].num_cached_tokens == 0, "prompt logprobs need every row computed"


def test_prompt_logprobs_survive_preemption() -> None:
    harness = EngineHarness(num_blocks=12, max_num_batched_tokens=8, max_num_seqs=4)
    long = tuple(range(20, 52))
    harness.turn(add_group("g", long, max_tokens=12, num_prompt_logprobs=0, slo_class="batch"))
    for _ in range(4):
        harness.turn()
    outputs = harness.run(add_group("urgent", tuple(range(200, 213)), slo_class="realtime"))
    assert outputs.stats.num_preemptions > 0
    assert [p.token_id for p in harness.prompt_logprobs["g", 0]] == list(long[1:])
    assert tuple(harness.tokens["g", 0]) == fake_output(long, 12)


def test_logprobs_come_with_their_tokens() -> None:
    harness = EngineHarness()
    outputs = harness.turn(add_group("g", PROMPT, max_tokens=1, num_logprobs=1))
    (delta,) = outputs.deltas
    assert [p.token_id for p in delta.logprobs] == list(delta.token_ids) == list(fake_output(PROMPT, 1))


def test_what_can_never_fit_is_refused_and_leaves_nothing() -> None:
    harness = EngineHarness(num_blocks=8)
    outputs = harness.turn(add_group("g", PROMPT, max_tokens=1000))
    (refused,) = outputs.refused
    assert refused.group_id == "g" and refused.reason == "never_fits" and refused.message
    harness.assert_nothing_is_left()


def test_a_full_queue_refuses() -> None:
    harness = EngineHarness(max_queued_requests=2, max_num_seqs=1)
    harness.turn(add_group("running", PROMPT, max_tokens=20))
    outputs = harness.turn(*[add_group(f"g{i}", PROMPT) for i in range(3)])
    assert [(r.group_id, r.reason) for r in outputs.refused] == [("g2", "instance_full")]
    harness.run()
    assert set(harness.finish_reasons) == {("running", 0), ("g0", 0), ("g1", 0)}


def test_a_group_that_waits_too_long_expires_whole() -> None:
    harness = EngineHarness(max_num_seqs=1)
    harness.turn(add_group("running", PROMPT, max_tokens=50))
    harness.turn(add_group("late", PROMPT, n=3))
    harness.turn(AbortChoices(group_id="late", choices=(1,)))
    harness.clock.advance(601.0)
    harness.run()
    assert harness.refused["late"].reason == "expired" and harness.refused["late"].retry_after_s is not None
    assert harness.finish_reasons == {("late", 1): "abort", ("running", 0): "length"}
    harness.assert_nothing_is_left()


def test_a_degraded_group_is_told_its_class() -> None:
    harness = EngineHarness()
    harness.turn(add_group("g", PROMPT, slo_class="batch"))
    assert harness.admitted["g"][0].granted == "batch"
    assert harness.admitted["g"][0].tpot_target_s == pytest.approx(0.4)


def test_an_idle_engine_waits_for_messages_and_a_busy_one_does_not() -> None:
    harness = EngineHarness()
    assert harness.core.wait_s() is None
    harness.turn(add_group("g", PROMPT))
    assert harness.core.wait_s() == 0.0
    harness.run()
    assert harness.core.wait_s() is None


def test_a_live_group_of_the_same_id_is_not_disturbed(caplog: pytest.LogCaptureFixture) -> None:
    harness = EngineHarness()
    harness.turn(add_group("g", PROMPT, max_tokens=5))
    harness.run(add_group("g", PROMPT[:4]))
    assert tuple(harness.tokens["g", 0]) == fake_output(PROMPT, 5)
    assert "a group of that id is live" in caplog.text
