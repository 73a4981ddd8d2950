"""What a step holds, who yields, what a group shares, and how requests end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from scheduler.link import NO_LINK
from scheduler.output import BlockCopy, RefusalReason, RequestResult, SchedulerOutput, StepResult, VerdictKind
from scheduler.request import FinishReason, RequestSpec
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLO
from tests.scheduler_builders import NOW_S, make_group, make_scheduler, make_spec, result_of, step, tokens_of


def add(scheduler: Scheduler, *specs: RequestSpec, now_s: float = 0.0) -> None:
    for spec in specs:
        assert scheduler.add((spec,), now_s).kind is not VerdictKind.REFUSE


def run(scheduler: Scheduler, num_steps: int, now_s: float = NOW_S) -> list[SchedulerOutput]:
    return [step(scheduler, now_s)[0] for _ in range(num_steps)]


def names(items: Sequence[object]) -> list[str]:
    return [item.request_id for item in items]  # type: ignore[attr-defined]


class TestStep:
    def test_a_long_prompt_is_computed_in_chunks_and_samples_with_the_last(self) -> None:
        scheduler = make_scheduler(30)
        add(scheduler, make_spec("a", 70, 3))
        outputs = run(scheduler, 5)
        assert [tokens_of(o) for o in outputs] == [{"a": 32}, {"a": 32}, {"a": 6}, {"a": 1}, {"a": 1}]
        assert [o.scheduled[0].samples for o in outputs] == [False, False, True, True, True]
        assert [o.scheduled[0].num_computed_tokens for o in outputs] == [0, 32, 64, 70, 71]
        assert not scheduler.has_work()

    def test_a_start_brings_the_whole_table_and_a_decode_what_is_new(self) -> None:
        scheduler = make_scheduler(30)
        add(scheduler, make_spec("a", 7, 9))
        parts = [o.scheduled[0] for o in run(scheduler, 4)]
        assert [(p.first_block, p.new_block_ids) for p in parts] == [(0, (0, 1)), (2, ()), (2, (2,)), (3, ())]

    def test_decodes_go_before_prefills_and_short_prompts_share_a_step(self) -> None:
        scheduler = make_scheduler(40)
        add(scheduler, make_spec("a", 8, 9))
        run(scheduler, 1)
        add(scheduler, make_spec("b", 40, 1, arrival_s=1.0), make_spec("c", 9, 1, arrival_s=2.0))
        assert [tokens_of(o) for o in run(scheduler, 2)] == [{"a": 1, "b": 31}, {"a": 1, "b": 9, "c": 9}]

    def test_an_urgent_arrival_takes_the_budget_from_a_lower_prefill_without_its_blocks(self) -> None:
        scheduler = make_scheduler(60)
        add(scheduler, make_spec("bulk", 100, 1, slo_class="batch"))
        run(scheduler, 1)
        add(scheduler, make_spec("urgent", 20, 2, slo_class="realtime", arrival_s=1.0))
        outputs = run(scheduler, 2)
        assert [tokens_of(o) for o in outputs] == [{"urgent": 20, "bulk": 12}, {"urgent": 1, "bulk": 31}]
        assert not outputs[0].preempted

    def test_seats_are_a_limit(self) -> None:
        scheduler = make_scheduler(40, max_num_seqs=2)
        add(scheduler, *(make_spec(name, 4, 2, arrival_s=float(i)) for i, name in enumerate("abc")))
        outputs = run(scheduler, 3)
        assert [list(tokens_of(o)) for o in outputs] == [["a", "b"], ["a", "b"], ["c"]]
        assert outputs[0].reasons == ("no_seat",)

    def test_a_prompt_starts_only_if_all_of_it_fits_beside_the_watermark(self) -> None:
        scheduler = make_scheduler(10)
        add(scheduler, make_spec("a", 16, 2))
        run(scheduler, 1)
        add(scheduler, make_spec("long", 20, 1, arrival_s=1.0), make_spec("short", 4, 1, arrival_s=2.0))
        blocked, after = run(scheduler, 2)
        assert (tokens_of(blocked), blocked.reasons) == ({"a": 1}, ("no_blocks",)), "nobody overtakes the head"
        assert tokens_of(after) == {"long": 20, "short": 4}, "5 blocks fit in 5 only while nothing runs"

    def test_fcfs_serves_by_arrival(self) -> None:
        scheduler = make_scheduler(40, scheduler_policy="fcfs", max_num_seqs=1)
        add(scheduler, make_spec("a", 4, 1, slo_class="batch"), make_spec("b", 4, 1, slo_class="realtime", arrival_s=1))
        assert [list(tokens_of(o)) for o in run(scheduler, 2)] == [["a"], ["b"]]

    def test_the_order_of_adding_equal_requests_changes_nothing(self) -> None:
        specs = [make_spec(name, 9, 2) for name in ("x", "y", "z")]
        outputs = []
        for order in (specs, specs[::-1]):
            scheduler = make_scheduler(40, max_num_seqs=2)
            add(scheduler, *order)
            outputs.append(run(scheduler, 4))
        assert outputs[0] == outputs[1]

    def test_an_idle_scheduler_gives_an_empty_step(self) -> None:
        scheduler = make_scheduler(4)
        output, finished = step(scheduler)
        assert (output.scheduled, finished, output.num_tokens) == ((), (), 0)


class TestPrefixCache:
    def test_a_second_prompt_starts_behind_the_shared_prefix(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 14, 1, prompt="p"))
        run(scheduler, 1)
        add(scheduler, make_spec("b", 18, 1, prompt="p"))
        output, _ = step(scheduler)
        assert (output.scheduled[0].num_computed_tokens, output.scheduled[0].num_tokens) == (12, 6)
        admission = output.admissions[0]
        assert admission.num_cached_tokens == 12
        assert admission.ttft_target_s == pytest.approx(3.0 + 0.3 * 6 / 1000), "the target counts uncached tokens"
        stats = scheduler.stats()
        assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.prompt_tokens_computed) == (32, 12, 20)

    def test_a_wholly_known_prompt_still_computes_its_last_block(self) -> None:
        scheduler = make_scheduler(20)
        for name in ("a", "b"):
            add(scheduler, make_spec(name, 12, 1, prompt="p"))
            output, _ = step(scheduler)
        assert tokens_of(output) == {"b": 4}

    def test_output_blocks_are_found_too(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 4, 6))
        for _ in range(6):
            output = scheduler.schedule(NOW_S, NO_LINK)
            part = output.scheduled[0]
            full = part.num_computed_tokens + part.num_tokens == 8
            result = RequestResult("a", 1, None, (b"out",) if full else ())
            scheduler.update(output, StepResult(output.step_id, (result,)), NOW_S)
        spec = dataclasses.replace(make_spec("b", 11, 1), block_hashes=(b"a:0", b"out"))
        add(scheduler, spec)
        assert step(scheduler)[0].admissions[0].num_cached_tokens == 8


class TestPreemption:
    def test_the_newest_of_the_lowest_class_yields_to_a_decode(self) -> None:
        scheduler = make_scheduler(7)
        add(
            scheduler,
            make_spec("old", 8, 8, slo_class="batch"),
            make_spec("new", 8, 8, slo_class="batch", arrival_s=1.0),
            make_spec("top", 8, 8, arrival_s=2.0),
        )
        first, second = run(scheduler, 2)
        assert list(tokens_of(first)) == ["top", "old", "new"]
        assert second.preempted == ("new",) and set(tokens_of(second)) == {"top", "old"}
        assert set(second.reasons) == {"preempted"}

    def test_a_requester_without_juniors_yields_itself(self) -> None:
        scheduler = make_scheduler(5)
        add(scheduler, make_spec("a", 8, 4), make_spec("b", 8, 4, arrival_s=1.0))
        outputs = run(scheduler, 2)
        assert outputs[1].preempted == ("b",) and tokens_of(outputs[1]) == {"a": 1}

    def test_a_step_preempts_no_more_than_its_bound(self) -> None:
        """All four lack a block, one is free: b takes d's, and c, which would yield itself, stays as it is."""
        scheduler = make_scheduler(5, max_victims_per_step=1)
        add(scheduler, *(make_spec(name, 4, 9, arrival_s=float(i)) for i, name in enumerate("abcd")))
        _, output = run(scheduler, 2)
        assert (output.preempted, tokens_of(output)) == (("d",), {"a": 1, "b": 1})
        assert scheduler.stats().num_running == 3
        assert step(scheduler)[0].preempted == ("c",)

    def test_a_preempted_request_keeps_its_place_and_computes_everything_again(self) -> None:
        scheduler = make_scheduler(5)
        add(scheduler, make_spec("a", 8, 4), make_spec("b", 7, 4, arrival_s=1.0))
        assert run(scheduler, 3)[-1].preempted == ("b",)
        add(scheduler, make_spec("c", 4, 1, arrival_s=2.0))
        outputs = run(scheduler, 4)
        restart = next(o for o in outputs if "b" in tokens_of(o))
        part = next(s for s in restart.scheduled if s.request_id == "b")
        assert (part.num_computed_tokens, part.num_tokens, part.first_block) == (4, 5, 0), "its first block was cached"
        assert not any("c" in tokens_of(o) for o in outputs[: outputs.index(restart)]), "it does not go to the tail"
        assert "b" not in names(restart.admissions), "it was admitted once"
        stats = scheduler.stats()
        assert (stats.num_preemptions, stats.recomputed_tokens) == (1, 4)

    def test_a_waiting_request_takes_strictly_lower_classes_only(self) -> None:
        for slo_class, expected in (("batch", ()), ("standard", ()), ("interactive", ("run",)), ("realtime", ("run",))):
            scheduler = make_scheduler(10, max_num_seqs=1)
            add(scheduler, make_spec("run", 4, 9))
            run(scheduler, 1)
            add(scheduler, make_spec("head", 4, 1, slo_class=slo_class, arrival_s=1.0))
            output, _ = step(scheduler)
            assert output.preempted == expected
            assert list(tokens_of(output)) == (["head"] if expected else ["run"]), "it starts in their place at once"

    def test_nobody_yields_if_that_is_not_enough(self) -> None:
        scheduler = make_scheduler(10)
        add(scheduler, make_spec("equal", 20, 9), make_spec("lower", 8, 9, slo_class="batch"))
        run(scheduler, 1)
        add(scheduler, make_spec("head", 21, 1, arrival_s=1.0))
        output, _ = step(scheduler)
        assert output.preempted == () and set(tokens_of(output)) == {"equal", "lower"}

    def test_only_the_request_that_room_was_made_for_starts(self) -> None:
        scheduler = make_scheduler(20, max_num_seqs=1)
        add(scheduler, make_spec("run", 4, 9, slo_class="batch"))
        run(scheduler, 1)
        add(scheduler, *(make_spec(name, 4, 1, arrival_s=1.0 + i) for i, name in enumerate(("head", "next"))))
        output, _ = step(scheduler)
        assert (output.preempted, list(tokens_of(output))) == (("run",), ["head"])

    def test_a_request_preempted_often_enough_is_pinned_with_all_it_may_need(self) -> None:
        scheduler = make_scheduler(10, max_num_seqs=1, max_preemptions=1)
        add(scheduler, make_spec("low", 4, 20, slo_class="batch"))
        run(scheduler, 1)
        add(scheduler, make_spec("first", 4, 1, arrival_s=1.0))
        assert step(scheduler)[0].preempted == ("low",)
        output, _ = step(scheduler)
        assert len(output.scheduled[0].new_block_ids) == 6
        add(scheduler, make_spec("second", 4, 1, slo_class="realtime", arrival_s=2.0))
        assert all(not o.preempted for o in run(scheduler, 18))
        assert list(tokens_of(step(scheduler)[0])) == ["second"]


class TestGroup:
    def test_choices_share_the_prompt_and_copy_its_last_block(self) -> None:
        scheduler = make_scheduler(20)
        scheduler.add(make_group("g", 3, 7, 3), 0.0)
        first, second = run(scheduler, 2)
        assert tokens_of(first) == {"g/0": 7}
        assert tokens_of(second) == {"g/0": 1, "g/1": 1, "g/2": 1}
        assert second.block_copies == (BlockCopy(1, 2), BlockCopy(1, 3))
        for part, target in zip(second.scheduled[1:], (2, 3), strict=True):
            assert (part.num_computed_tokens, part.new_block_ids, part.samples) == (6, (0, target), True)
        stats = scheduler.stats()
        assert (stats.prompt_tokens_computed, stats.prompt_tokens_shared) == (7 + 2, 12)

    def test_a_forked_choice_reports_the_cached_tokens_of_its_leader(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("before", 5, 1, prompt="g"))
        run(scheduler, 1)
        scheduler.add(make_group("g", 2, 7, 3), 0.0)
        first, second = run(scheduler, 2)
        assert [a.num_cached_tokens for a in (*first.admissions, *second.admissions)] == [4, 4]
        assert second.admissions[0].ttft_target_s == first.admissions[0].ttft_target_s

    def test_choices_wait_while_the_leader_computes_in_chunks(self) -> None:
        scheduler = make_scheduler(20)
        scheduler.add(make_group("g", 2, 40, 1), 0.0)
        assert [tokens_of(o) for o in run(scheduler, 3)] == [{"g/0": 32}, {"g/0": 8}, {"g/1": 4}]

    @pytest.mark.parametrize("max_tokens", [0, 1])
    def test_a_leader_that_ends_with_its_prompt_leaves_the_rest_to_the_cache(self, max_tokens: int) -> None:
        scheduler = make_scheduler(20)
        scheduler.add(make_group("g", 3, 7, max_tokens), 0.0)
        assert [tokens_of(o) for o in run(scheduler, 2)] == [{"g/0": 7}, {"g/1": 3, "g/2": 3}]
        assert not scheduler.has_work()

    @pytest.mark.parametrize("when", ["before", "during", "after"])
    def test_a_group_survives_the_abort_of_its_leader(self, when: str) -> None:
        scheduler = make_scheduler(20)
        scheduler.add(make_group("g", 2, 40, 2), 0.0)
        run(scheduler, {"before": 0, "during": 1, "after": 2}[when])
        assert names(scheduler.abort(("g/0",), 0.0)) == ["g/0"]
        scheduler.check()
        finished = [f for _ in range(4) for f in step(scheduler)[1]]
        assert [(f.request_id, f.finish_reason) for f in finished] == [("g/1", FinishReason.LENGTH)]

    def test_a_copys_source_is_kept_until_the_step_is_done(self) -> None:
        scheduler = make_scheduler(4)
        scheduler.add(make_group("g", 2, 3, 4), 0.0)
        run(scheduler, 1)
        output = scheduler.schedule(NOW_S, NO_LINK)
        assert output.block_copies == (BlockCopy(0, 1),)
        scheduler.abort(("g/0", "g/1"), 0.0)
        scheduler.check()
        assert scheduler.stats().num_blocks_used == 2
        scheduler.update(output, result_of(output), NOW_S)
        assert scheduler.stats().num_blocks_used == 0

    def test_each_prompt_of_a_group_has_its_own_leader(self) -> None:
        scheduler = make_scheduler(20)
        other = make_spec("g/9", 5, 1, group_id="g")
        scheduler.add((*make_group("g", 2, 7, 1), other), 0.0)
        assert tokens_of(step(scheduler)[0]) == {"g/0": 7, "g/9": 5}


class TestEnd:
    def test_length_is_the_schedulers_and_stop_the_engines(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 4, 2), make_spec("b", 4, 9))
        _, finished = step(scheduler)
        assert finished == ()
        _, finished = step(scheduler, stops=("b",))
        assert {(f.request_id, f.finish_reason) for f in finished} == {
            ("a", FinishReason.LENGTH),
            ("b", FinishReason.STOP),
        }
        assert scheduler.stats().num_blocks_used == 0

    def test_a_stop_with_the_last_token_is_a_stop(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 4, 1))
        assert step(scheduler, stops=("a",))[1][0].finish_reason is FinishReason.STOP

    def test_max_tokens_of_zero_computes_the_prompt_and_samples_nothing(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 40, 0))
        _, finished = step(scheduler)
        assert finished == ()
        output, finished = step(scheduler)
        assert not output.scheduled[0].samples
        assert [f.finish_reason for f in finished] == [FinishReason.LENGTH]
        assert scheduler.stats().generation_tokens == 0

    def test_an_error_ends_one_request_and_keeps_its_blocks_out_of_the_cache(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 9, 5), make_spec("b", 9, 5))
        _, finished = step(scheduler, errors=("a",))
        assert [(f.request_id, f.finish_reason) for f in finished] == [("a", FinishReason.ERROR)]
        assert scheduler.stats().num_running == 1 and scheduler.stats().num_cached_blocks == 0

    @pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
    def test_an_abort_is_legal_at_any_time_and_gives_everything_back(self, num_steps: int) -> None:
        scheduler = make_scheduler(20)
        scheduler.add(make_group("g", 3, 40, 9), 0.0)
        run(scheduler, num_steps)
        assert len(scheduler.abort(("g/1", "g/0", "nobody", "g/2", "g/0"), 0.0)) == 3
        scheduler.check()
        assert scheduler.abort(("g/0", "g/1"), 0.0) == ()
        assert not scheduler.has_work() and scheduler.stats().num_blocks_used == 0

    def test_a_group_that_never_started_expires_whole(self) -> None:
        scheduler = make_scheduler(20, max_num_seqs=1)
        add(scheduler, make_spec("run", 4, 20))
        run(scheduler, 1, now_s=0.0)
        slo = SLO("batch", "batch", e2e_deadline_s=5.0)
        scheduler.add(make_group("g", 2, 4, 1, slo=slo, arrival_s=1.0), 1.0)
        add(scheduler, make_spec("patient", 4, 1, slo_class="batch", arrival_s=1.0), now_s=1.0)
        assert step(scheduler, 5.9)[0].expired == ()
        scheduler._admission.observe_step(0, 10.0)  # a slow machine
        output, _ = step(scheduler, 6.0)
        assert [e.group_id for e in output.expired] == ["g"]
        assert output.expired[0].retry_after_s > 1.0, "an estimate from what waits"
        assert scheduler.stats().num_expired == 2 and scheduler.stats().num_waiting == 1
        assert step(scheduler, 601.0)[0].expired[0].group_id == "patient"

    def test_a_started_group_does_not_expire(self) -> None:
        scheduler = make_scheduler(20, max_num_seqs=1)
        scheduler.add(make_group("g", 2, 4, 3, slo=SLO("batch", "batch", e2e_deadline_s=5.0)), 0.0)
        run(scheduler, 1, now_s=4.0)
        outputs = run(scheduler, 5, now_s=9.0)
        assert not any(o.expired for o in outputs) and not scheduler.has_work()

    def test_the_next_wakeup_is_the_first_expiry_while_nothing_runs(self) -> None:
        scheduler = make_scheduler(20)
        assert scheduler.next_wakeup_s() is None
        add(scheduler, make_spec("a", 4, 2, arrival_s=2.0))
        assert scheduler.next_wakeup_s() == 602.0
        run(scheduler, 1)
        assert scheduler.next_wakeup_s() is None


class TestOneStepInFlight:
    def test_a_token_in_flight_is_scheduled_as_a_placeholder(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 7, 3))
        first = scheduler.schedule(NOW_S, NO_LINK)
        second = scheduler.schedule(NOW_S, NO_LINK)
        scheduler.check()
        assert (second.scheduled[0].num_computed_tokens, second.scheduled[0].samples) == (7, True)
        with pytest.raises(RuntimeError, match="step 0 must be updated"):
            scheduler.schedule(NOW_S, NO_LINK)
        scheduler.update(first, result_of(first), NOW_S)
        third = scheduler.schedule(NOW_S, NO_LINK)
        scheduler.update(second, result_of(second), NOW_S)
        assert scheduler.schedule(NOW_S, NO_LINK).scheduled == (), "the last output token needs no step"
        assert names(scheduler.update(third, result_of(third), NOW_S)) == ["a"]

    def test_a_late_result_of_a_finished_request_is_discarded_and_its_blocks_wait(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 7, 9))
        first, second = scheduler.schedule(NOW_S, NO_LINK), scheduler.schedule(NOW_S, NO_LINK)
        assert names(scheduler.update(first, result_of(first, stops=("a",)), NOW_S)) == ["a"]
        scheduler.check()
        assert not scheduler.has_work() and scheduler.stats().num_blocks_used == 2
        assert scheduler.update(second, result_of(second), NOW_S) == ()
        assert scheduler.stats().num_blocks_used == 0
        assert scheduler.stats().discarded_tokens == 1

    @staticmethod
    def full_pool_in_flight() -> tuple[Scheduler, SchedulerOutput]:
        """All 6 blocks are taken, a step with all three requests is in flight, and next b needs a block."""
        scheduler = make_scheduler(6)
        sizes = (("a", 8), ("b", 7), ("c", 3))
        add(scheduler, *(make_spec(name, size, 9, arrival_s=float(i)) for i, (name, size) in enumerate(sizes)))
        run(scheduler, 1)
        output = scheduler.schedule(NOW_S, NO_LINK)
        assert tokens_of(output) == {"a": 1, "b": 1, "c": 1} and scheduler.stats().num_blocks_used == 6
        return scheduler, output

    def test_nobody_is_preempted_for_blocks_that_are_coming(self) -> None:
        scheduler, first = self.full_pool_in_flight()
        scheduler.abort(("c",), NOW_S)
        second = scheduler.schedule(NOW_S, NO_LINK)
        scheduler.check()
        assert (tokens_of(second), second.preempted) == ({"a": 1}, ())
        assert second.reasons == ("no_block_for_decode",)
        scheduler.update(first, result_of(first), NOW_S)
        assert tokens_of(scheduler.schedule(NOW_S, NO_LINK)) == {"a": 1, "b": 1}

    def test_a_head_takes_nobodys_place_for_blocks_that_are_coming(self) -> None:
        scheduler, first = self.full_pool_in_flight()
        scheduler.abort(("b", "c"), NOW_S)
        add(scheduler, make_spec("head", 4, 1, slo_class="realtime", arrival_s=5.0))
        second = scheduler.schedule(NOW_S, NO_LINK)
        assert (tokens_of(second), second.preempted, second.reasons) == ({"a": 1}, (), ("no_blocks",))
        scheduler.update(first, result_of(first), NOW_S)
        assert tokens_of(scheduler.schedule(NOW_S, NO_LINK)) == {"a": 1, "head": 4}

    def test_a_victim_in_flight_keeps_its_blocks_until_its_step_is_done(self) -> None:
        scheduler, first = self.full_pool_in_flight()
        second = scheduler.schedule(NOW_S, NO_LINK)
        scheduler.check()
        assert (tokens_of(second), second.preempted) == ({"a": 1}, ("c",))
        assert scheduler.stats().num_blocks_used == 6
        scheduler.update(first, result_of(first), NOW_S)
        assert scheduler.stats().discarded_tokens == 1, "c's sample came too late"
        assert tokens_of(scheduler.schedule(NOW_S, NO_LINK)) == {"a": 1, "b": 1}
        scheduler.check()

    def test_hashes_that_come_with_a_void_result_are_kept(self) -> None:
        """They name c's tokens; without them the next hash would be taken for the first block's."""
        scheduler, first = self.full_pool_in_flight()
        second = scheduler.schedule(NOW_S, NO_LINK)
        assert second.preempted == ("c",)
        results = [
            dataclasses.replace(r, new_block_hashes=(b"c:0",) if r.request_id == "c" else ())
            for r in result_of(first).results
        ]
        scheduler.update(first, StepResult(first.step_id, tuple(results)), NOW_S)
        scheduler.update(second, result_of(second), NOW_S)
        scheduler.abort(("a", "b"), NOW_S)
        end = 0
        while end < 8:
            output = scheduler.schedule(NOW_S, NO_LINK)
            (part,) = output.scheduled
            end = part.num_computed_tokens + part.num_tokens
            result = RequestResult("c", 1, None, (b"c:1",) if end == 8 else ())
            scheduler.update(output, StepResult(output.step_id, (result,)), NOW_S)
        add(scheduler, dataclasses.replace(make_spec("d", 9, 1), block_hashes=(b"c:0", b"c:1")))
        assert step(scheduler)[0].admissions[0].num_cached_tokens == 8


class TestMisuse:
    def test_ids_must_not_be_live(self) -> None:
        scheduler = make_scheduler(20)
        add(scheduler, make_spec("a", 4, 1))
        with pytest.raises(ValueError, match="live already"):
            scheduler.add((make_spec("a", 4, 1),), 0.0)
        with pytest.raises(ValueError, match="live already"):
            scheduler.add((make_spec("a", 4, 1, group_id="other"),), 0.0)
        scheduler.abort(("a",), 0.0)
        add(scheduler, make_spec("a", 4, 1))

    def test_a_refused_group_leaves_nothing_behind(self) -> None:
        scheduler = make_scheduler(4)
        assert scheduler.add((make_spec("a", 40, 1),), 0.0).reason is RefusalReason.NEVER_FITS
        scheduler.check()
        assert not scheduler.has_work()
        add(scheduler, make_spec("a", 4, 1))

    def test_a_degraded_group_is_served_in_the_granted_class(self) -> None:
        classes = tuple(
            dataclasses.replace(c, queue_cap_tokens=7) if c.name == "interactive" else c for c in DEFAULT_CLASSES
        )
        scheduler = make_scheduler(20, max_num_seqs=1, classes=classes)
        add(scheduler, make_spec("run", 4, 30), make_spec("first", 4, 4, slo_class="interactive"))
        slo = SLO("interactive", "interactive", may_degrade=True)
        verdict = scheduler.add((make_spec("second", 4, 4, slo=slo),), 0.0)
        assert (verdict.kind, verdict.granted) == (VerdictKind.DEGRADE, "standard")
        assert scheduler.stats().num_waiting_by_class["standard"] == 2
        scheduler.check()
