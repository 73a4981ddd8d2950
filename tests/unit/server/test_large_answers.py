"""Answers with many log-probabilities: kept as bytes, written in pieces, and the same as small ones."""

from __future__ import annotations

import gc
from typing import Any

from engine.messages import ChoiceDelta, StepOutputs, decode_to_server, encode
from engine.sampling_params import SamplingParams
from server.answer import Envelope
from server.chat_writer import ChatWriter
from server.choice_text import MAX_PART_LOGPROBS, ChoiceUpdate
from server.completion_writer import CompletionWriter
from server.generation_plan import GenerationPlan
from server.json_pieces import BLOCK_BYTES
from tests.fake_async_engine import fake_logprob, fake_stats
from tests.http_harness import Harness, events_of, run, text_of
from tests.tiny_tokenizers import tiny_gpt2


def test_whole_answer_has_the_logprobs_of_the_stream_also_where_they_come_in_parts() -> None:
    async def body(h: Harness) -> None:
        h.engine.script.tokens_per_delta = 400
        options: dict[str, Any] = {"logprobs": True, "top_logprobs": 20, "n": 3, "max_tokens": 400, "ignore_eos": True}
        whole = (await h.chat(**options)).json()
        chunks = events_of(await h.chat(stream=True, **options))
        assert len(chunks) > 2 * 3, "the log-probabilities of 400 tokens are no single piece of work"
        for choice in whole["choices"]:
            parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
            streamed = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
            assert choice["logprobs"]["content"] == streamed and len(streamed) == 400
            assert choice["message"]["content"] == text_of(chunks, choice["index"])

    run(body, max_model_len=1024)


def test_large_answer_is_sent_in_blocks_with_its_length() -> None:
    async def body(h: Harness) -> None:
        response = await h.chat(logprobs=True, top_logprobs=20, max_tokens=600, ignore_eos=True)
        assert len(response.content) == int(response.headers["content-length"]) > BLOCK_BYTES
        assert len(response.json()["choices"][0]["logprobs"]["content"]) == 600

    run(body, max_model_len=1024)


def test_kept_logprobs_are_nothing_to_the_garbage_collector() -> None:
    plan = GenerationPlan(prompts=((9,),), n=1, sampling=SamplingParams(max_tokens=1000, num_logprobs=5))
    envelope = Envelope("x", 0, "m", "default")
    for writer in (ChatWriter(envelope, plan, tiny_gpt2()), CompletionWriter(envelope, plan, tiny_gpt2())):
        _collect(writer, 9)
        gc.collect()
        num_before = len(gc.get_objects())
        for token_id in range(10, 210):
            _collect(writer, token_id)
        assert len(gc.get_objects()) - num_before < 20


def _collect(writer: ChatWriter | CompletionWriter, token_id: int) -> None:
    writer.collect(ChoiceUpdate(0, "a", (token_id,), (fake_logprob(token_id, 5),), (), None, None))


def test_records_that_come_by_the_thousand_are_not_tracked() -> None:
    delta = ChoiceDelta(group_id="g", choice=0, token_ids=(9,), logprobs=(fake_logprob(9, 5),))
    step = decode_to_server(encode(StepOutputs(deltas=(delta,), stats=fake_stats(1))))
    assert isinstance(step, StepOutputs) and step.deltas == (delta,)
    assert not gc.is_tracked(step.deltas[0]) and not gc.is_tracked(step.deltas[0].logprobs[0])


def test_parts_of_an_update_are_the_update() -> None:
    num_prompt, num_output = 3 * MAX_PART_LOGPROBS // 6 + 5, 2 * MAX_PART_LOGPROBS // 6
    ids = tuple(range(9, 9 + num_output))
    prompt_logprobs = tuple(fake_logprob(token_id, 5) for token_id in range(num_prompt))
    logprobs = tuple(fake_logprob(token_id, 5) for token_id in ids)
    for update in (
        ChoiceUpdate(1, "text", ids, logprobs, prompt_logprobs, "stop", "end"),
        ChoiceUpdate(1, "text", ids, (), (), None, None),
        ChoiceUpdate(1, "", (), (), prompt_logprobs, None, None),
        ChoiceUpdate(1, "", (), (), (), "length", None),
    ):
        parts = list(update.parts())
        assert all(6 * (len(p.logprobs) + len(p.prompt_logprobs)) <= MAX_PART_LOGPROBS for p in parts)
        assert sum((p.token_ids for p in parts), ()) == update.token_ids
        assert sum((p.logprobs for p in parts), ()) == update.logprobs
        assert sum((p.prompt_logprobs for p in parts), ()) == update.prompt_logprobs
        assert [(p.text, p.finish_reason, p.stop_reason) for p in parts[:-1]] == [("", None, None)] * (len(parts) - 1)
        assert (parts[-1].text, parts[-1].finish_reason) == (update.text, update.finish_reason)
