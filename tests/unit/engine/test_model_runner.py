"""Steps of the runner on a decoder that notices every wrong slot, table, copy and position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.model_runner import MAX_LOGITS_ROWS, ModelRunner
from engine.model_runner_output import ModelRunnerOutput
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from scheduler.output import BlockCopy, ScheduledRequest, SchedulerOutput
from tests.unit.engine.fake_decoder import FakeConfig, FakeDecoder, FakeModel, expected_token, expected_tokens

BLOCK_SIZE = 4


def make_runner(decoder: FakeDecoder | None = None, **limits: int) -> ModelRunner:
    options = {"num_blocks": 40, "max_num_seqs": 8, "max_num_batched_tokens": 600, "max_model_len": 64} | limits
    return ModelRunner(FakeModel(decoder or FakeDecoder()), block_size=BLOCK_SIZE, **options)  # type: ignore[arg-type]


def make_sequence(request_id: str, prompt: list[int], **options: Any) -> Sequence:
    sampling = SamplingParams(**({"max_tokens": 20, "temperature": 0.0} | options))
    return Sequence(request_id, 0, tuple(prompt), sampling, frozenset(), BLOCK_SIZE)


class Driver:
    """Schedules by hand: a block table per sequence, filled from a list of free blocks in an odd order."""

    def __init__(self, runner: ModelRunner, num_blocks: int = 40) -> None:
        self.runner = runner
        self.free = [block for block in range(num_blocks) if block % 3] + [b for b in range(num_blocks) if not b % 3]
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.sequences: dict[str, Sequence] = {}
        self.steps = 0

    def add(self, sequence: Sequence) -> Sequence:
        self.sequences[sequence.request_id] = sequence
        self.runner.add(sequence)
        return sequence

    def record(self, request_id: str, num_tokens: int) -> ScheduledRequest:
        sequence = self.sequences[request_id]
        computed = self.computed.setdefault(request_id, 0)
        table = self.tables.setdefault(request_id, [])
        first = len(table)
        while len(table) * BLOCK_SIZE < computed + num_tokens:
            table.append(self.free.pop(0))
        samples = computed + num_tokens == sequence.num_tokens
        return ScheduledRequest(request_id, num_tokens, computed, first, tuple(table[first:]), samples)

    def preempt(self, request_id: str) -> str:
        self.free += self.tables.pop(request_id)
        self.computed.pop(request_id)
        return request_id

    def finish(self, request_id: str) -> None:
        self.preempt(request_id)
        self.runner.remove(request_id)

    def step(
        self, tokens: dict[str, int], *, copies: tuple[BlockCopy, ...] = (), preempted: tuple[str, ...] = ()
    ) -> ModelRunnerOutput:
        records = tuple(self.record(request_id, count) for request_id, count in tokens.items())
        self.steps += 1
        output = SchedulerOutput(self.steps, 0.0, records, block_copies=copies, preempted=preempted)
        result = self.runner.execute(output)
        self.runner.check()
        assert result.step_id == self.steps
        assert [entry.request_id for entry in result.outputs] == list(tokens)
        for record, entry in zip(records, result.outputs, strict=True):
            self.computed[record.request_id] += record.num_tokens
            assert (entry.token_id is not None) == (record.samples and entry.error is None)
            if entry.token_id is not None:
                self.sequences[record.request_id].append(entry.token_id)
        return result


def output_of(sequence: Sequence) -> list[int]:
    return sequence.output_token_ids.tolist()


def test_chunks_prefills_and_decodes_in_one_step() -> None:
    driver = Driver(make_runner())
    prompts = {"a": list(range(13)), "b": [5], "c": list(range(30, 52))}
    sequences = [driver.add(make_sequence(request_id, prompt)) for request_id, prompt in prompts.items()]
    driver.step({"a": 7})
    driver.step({"b": 1, "a": 5, "c": 3})
    driver.step({"c": 18, "b": 1, "a": 1})
    driver.step({"a": 1, "c": 1, "b": 1})
    for _ in range(6):
        driver.step({"b": 1, "c": 1, "a": 1})
    for sequence, count in zip(sequences, (8, 9, 7), strict=True):
        assert output_of(sequence) == expected_tokens(prompts[sequence.request_id], count)


def test_a_preempted_sequence_restarts_in_other_blocks_with_the_same_tokens() -> None:
    driver = Driver(make_runner())
    long, short = driver.add(make_sequence("a", list(range(11)))), driver.add(make_sequence("b", [9, 9, 9]))
    driver.step({"a": 11, "b": 3})
    driver.step({"a": 1, "b": 1})
    first_blocks = list(driver.tables["a"])
    gone = driver.preempt("a")
    driver.step({"b": 1}, preempted=(gone,))
    driver.step({"a": 8, "b": 1})
    driver.step({"b": 1, "a": 5})
    driver.step({"a": 1, "b": 1})
    assert driver.tables["a"] != first_blocks
    assert output_of(long) == expected_tokens(list(range(11)), 4)
    assert output_of(short) == expected_tokens([9, 9, 9], 6)


def test_a_choice_continues_from_the_shared_blocks_and_a_copied_one() -> None:
    driver = Driver(make_runner())
    prompt = list(range(60, 70))  # two full blocks and half of the third
    leader, child = driver.add(make_sequence("a", prompt)), driver.add(make_sequence("b", prompt))
    driver.step({"a": 10})
    driver.step({"a": 1})
    target = driver.free.pop(0)
    driver.tables["b"], driver.computed["b"] = [], 9
    shared = driver.tables["a"][:2]
    record = ScheduledRequest("b", 1, 9, 0, (*shared, target), True)
    copies = (BlockCopy(driver.tables["a"][2], target),)
    result = driver.runner.execute(
        SchedulerOutput(9, 0.0, (record, driver.record("a", 1)), block_copies=copies),
    )
    assert [entry.token_id for entry in result.outputs] == [
        expected_token(prompt),
        expected_token(prompt + output_of(leader)),
    ]
    assert output_of(child) == []


def test_rows_of_finished_sequences_are_used_again() -> None:
    driver = Driver(make_runner(max_num_seqs=2))
    for index in range(7):
        prompt = [index] * (15 - 2 * index)
        sequence = driver.add(make_sequence(f"r{index}", prompt))
        driver.step({f"r{index}": len(prompt)})
        driver.step({f"r{index}": 1})
        assert output_of(sequence) == expected_tokens(prompt, 2)
        driver.finish(f"r{index}")
    driver.runner.remove("r0")
    driver.runner.remove("never there")
    driver.runner.check()


def test_sequences_that_wait_take_no_row() -> None:
    driver = Driver(make_runner(max_num_seqs=1))
    sequences = [driver.add(make_sequence(str(index), [index, index])) for index in range(5)]
    driver.step({"3": 2})
    assert output_of(sequences[3]) == expected_tokens([3, 3], 1)


def test_more_sequences_than_rows_is_an_error_that_names_the_limit() -> None:
    driver = Driver(make_runner(max_num_seqs=1))
    driver.add(make_sequence("a", [1]))
    driver.add(make_sequence("b", [1]))
    with pytest.raises(RuntimeError, match="all 1 rows"):
        driver.step({"a": 1, "b": 1})


def test_logits_are_computed_for_needed_rows_only_and_in_bounded_blocks() -> None:
    decoder = FakeDecoder()
    rows = 2 * MAX_LOGITS_ROWS + 5
    driver = Driver(make_runner(decoder, num_blocks=600, max_num_seqs=rows, max_num_batched_tokens=2 * rows), 600)
    driver.add(make_sequence("long", list(range(40))))
    driver.step({"long": 30})
    assert decoder.logits_rows == []  # nothing is sampled from the middle of a prompt
    driver.step({"long": 10})
    assert decoder.logits_rows == [1]
    decoder.logits_rows.clear()
    prompts = {str(index): [index % 90, index % 7] for index in range(rows - 1)}
    sequences = [driver.add(make_sequence(request_id, prompt)) for request_id, prompt in prompts.items()]
    driver.step(dict.fromkeys(prompts, 2))
    assert decoder.logits_rows == [MAX_LOGITS_ROWS, MAX_LOGITS_ROWS, 4]
    assert [output_of(sequence) for sequence in sequences] == [
        expected_tokens(prompt, 1) for prompt in prompts.values()
    ]


def reference_logprobs(prompt: list[int], position: int) -> torch.Tensor:
    steps = (torch.arange(101) - expected_token(prompt[:position])) % 101
    return torch.log_softmax(steps * -0.1, 0)


def test_prompt_logprobs_of_chunks_score_the_next_token_in_bounded_blocks() -> None:
    decoder = FakeDecoder()
    driver = Driver(make_runner(decoder, num_blocks=400, max_model_len=700), 400)
    prompts = {"a": [(7 * index) % 101 for index in range(590)], "b": [3, 4, 5]}
    driver.add(make_sequence("a", prompts["a"], num_prompt_logprobs=2))
    driver.add(make_sequence("b", prompts["b"], num_prompt_logprobs=0))
    driver.add(make_sequence("c", [1, 2, 3]))
    steps = [driver.step({"b": 3, "a": 20, "c": 3}), driver.step({"a": 560}), driver.step({"a": 10, "b": 1})]
    assert max(decoder.logits_rows) <= MAX_LOGITS_ROWS
    scores: dict[str, list[Any]] = {"a": [], "b": [], "c": []}
    for result in steps:
        for entry in result.outputs:
            scores[entry.request_id] += entry.prompt_logprobs
    assert [len(scores[name]) for name in "abc"] == [589, 2, 0]
    for name, top in (("a", 2), ("b", 0)):
        for position, score in enumerate(scores[name], start=1):
            expected = reference_logprobs(prompts[name], position)
            assert score.token_id == prompts[name][position]
            assert score.logprob == pytest.approx(float(expected[score.token_id]), abs=1e-4)
            assert score.top_token_ids == tuple(expected.topk(top).indices.tolist())


def test_prompt_logprobs_are_returned_once_though_the_prompt_is_computed_twice() -> None:
    driver = Driver(make_runner())
    prompt = list(range(12))
    driver.add(make_sequence("a", prompt, num_prompt_logprobs=1))
    driver.add(make_sequence("b", [1]))
    counts = [len(driver.step({"a": 5}).outputs[0].prompt_logprobs)]
    gone = driver.preempt("a")
    driver.step({"b": 1}, preempted=(gone,))
    results = [driver.step({"a": 8}), driver.step({"a": 4}), driver.step({"a": 1})]
    counts += [len(result.outputs[0].prompt_logprobs) for result in results]
    assert counts == [5, 3, 3, 0]
    for position, score in enumerate(results[0].outputs[0].prompt_logprobs, start=6):
        assert score.token_id == prompt[position]
        assert score.logprob == pytest.approx(float(reference_logprobs(prompt, position)[score.token_id]), abs=1e-4)


def test_a_prompt_alone_is_computed_and_nothing_is_sampled() -> None:
    driver = Driver(make_runner())
    driver.add(make_sequence("a", [1, 2, 3], max_tokens=0, num_prompt_logprobs=1))
    record = ScheduledRequest("a", 3, 0, 0, (7,), samples=False)
    (entry,) = driver.runner.execute(SchedulerOutput(1, 0.0, (record,))).outputs
    assert entry.token_id is None and entry.error is None and len(entry.prompt_logprobs) == 2


def test_logits_that_are_not_finite_fail_their_request_alone() -> None:
    def spoil(logits: torch.Tensor) -> torch.Tensor:
        bad = logits.argmax(1) == expected_token([6, 6])
        logits[bad, 50] = torch.nan
        return logits

    assert expected_token([6, 6]) != expected_token([2, 2])
    driver = Driver(make_runner(FakeDecoder(spoil=spoil)))
    good = driver.add(make_sequence("good", [2, 2]))
    driver.add(make_sequence("bad", [6, 6]))
    driver.add(make_sequence("bad prompt", [6, 6, 4], num_prompt_logprobs=1))
    result = driver.step({"bad": 2, "good": 2, "bad prompt": 3})
    errors = {entry.request_id: entry.error for entry in result.outputs}
    assert errors["good"] is None and output_of(good) == expected_tokens([2, 2], 1)
    for name in ("bad", "bad prompt"):
        assert "not finite" in (errors[name] or "")
    assert [entry.token_id for entry in result.outputs if entry.error] == [None, None]


def test_the_right_request_fails_in_a_later_block_of_rows() -> None:
    def spoil(logits: torch.Tensor) -> torch.Tensor:
        logits[logits.argmax(1) == expected_token([90, 90]), 50] = torch.nan
        return logits

    count = MAX_LOGITS_ROWS + 4
    driver = Driver(make_runner(FakeDecoder(spoil=spoil), num_blocks=count, max_num_seqs=count), count)
    for index in range(count):
        driver.add(make_sequence(str(index), [90, 90] if index == count - 2 else [5, 5]))
    result = driver.step({str(index): 2 for index in range(count)})
    assert [entry.request_id for entry in result.outputs if entry.error] == [str(count - 2)]


def test_a_step_that_only_copies_and_preempts_has_no_outputs() -> None:
    driver = Driver(make_runner())
    driver.add(make_sequence("a", [1, 2, 3]))
    driver.step({"a": 3})
    source = driver.tables["a"][0]
    gone = driver.preempt("a")
    assert driver.step({}, copies=(BlockCopy(source, 39),), preempted=(gone,)).outputs == ()
    region = driver.runner.kv_cache.region
    assert torch.equal(region[39], region[source]) and bool(region[39].any())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (ScheduledRequest("a", 4, 0, 0, (1,), True), "tokens 0 to 4"),
        (ScheduledRequest("a", 2, 1, 1, (1,), True), "without a whole block table"),
        (ScheduledRequest("a", 3, 0, 0, tuple(range(17)), True), "17 blocks exceeds 16"),
        (ScheduledRequest("a", 601, 0, 0, (1,), True), "601 tokens in a step, at most 600"),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(record: ScheduledRequest, message: str) -> None:
    runner = make_runner()
    runner.add(make_sequence("a", [1, 2, 3]))
    with pytest.raises(ValueError, match=message):
        runner.execute(SchedulerOutput(1, 0.0, (record,)))


def test_vocabulary_of_one_token() -> None:
    driver = Driver(make_runner(FakeDecoder(FakeConfig(vocab_size=1))))
    sequence = driver.add(make_sequence("a", [0], temperature=1.0, top_p=0.5, top_k=3, num_logprobs=5))
    (entry,) = driver.step({"a": 1}).outputs
    assert output_of(sequence) == [0] and entry.logprob is not None and entry.logprob.top_logprobs == (0.0,)
