"""POST /v1/completions with a scripted engine: the four forms of prompts, echo, log-probabilities, limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fake_async_engine import fake_logprob
from tests.http_harness import ANSWER, Harness, error_of, events_of, run, text_of, until
from tests.openai_shapes import check_completion, check_completion_chunk


def _ids(h: Harness, text: str) -> list[int]:
    return h.tokenizer.encode(text, add_special_tokens=False, parse_special=True)


def test_whole_and_streamed_answers_have_openais_shape_and_one_text() -> None:
    async def body(h: Harness) -> None:
        whole = (await h.complete("hi", max_tokens=50)).json()
        check_completion(whole)
        assert whole["choices"][0]["text"] == ANSWER and whole["service_tier"] == "default"
        options = {"include_usage": True}
        chunks = events_of(await h.complete("hi", max_tokens=50, stream=True, stream_options=options))
        for chunk in chunks:
            check_completion_chunk(chunk)
        assert text_of(chunks) == ANSWER
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]

    run(body)


def test_max_tokens_defaults_to_16() -> None:
    async def body(h: Harness) -> None:
        answer = (await h.complete()).json()
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"

    run(body)


def test_prompt_may_be_a_text_texts_ids_or_lists_of_ids() -> None:
    async def body(h: Harness) -> None:
        first, second = tuple(_ids(h, "hi there")), tuple(_ids(h, "you"))
        forms: list[tuple[Any, tuple[tuple[int, ...], ...]]] = [
            ("hi there", (first,)),
            (["hi there", "you"], (first, second)),
            (list(first), (first,)),
            ([list(first), list(second)], (first, second)),
        ]
        for prompt, expected in forms:
            answer = (await h.complete(prompt, n=2, max_tokens=1)).json()
            assert h.engine.groups[-1].prompts == expected
            assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(expected)))
            assert answer["usage"]["prompt_tokens"] == sum(len(ids) for ids in expected)

    run(body)


def test_special_tokens_in_a_text_prompt_are_those_tokens() -> None:
    """A text prompt is raw: whoever writes it writes the template. Messages are the safe way."""

    async def body(h: Harness) -> None:
        await h.complete("<|im_start|>user")
        assert h.engine.groups[0].prompts[0][0] == 3

    run(body)


def test_echo_with_logprobs_and_no_output_scores_the_prompt() -> None:
    """Cases 22 and 23: what lm-eval's loglikelihood asks for."""

    async def body(h: Harness) -> None:
        prompt = "the fox"
        ids = _ids(h, prompt)
        for asked in (prompt, ids):
            response = await h.complete(asked, echo=True, logprobs=1, max_tokens=0)
            answer = response.json()
            check_completion(answer)
            choice = answer["choices"][0]
            assert choice["text"] == prompt and choice["finish_reason"] == "length"
            logprobs = choice["logprobs"]
            assert logprobs["tokens"] == [h.tokenizer.token_text(token_id) for token_id in ids]
            assert logprobs["token_logprobs"] == [None, *(fake_logprob(token_id, 1).logprob for token_id in ids[1:])]
            assert logprobs["top_logprobs"][0] is None
            assert all(
                tok in top for tok, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True)
            )
            assert [
                prompt[offset:][: len(tok)]
                for offset, tok in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
            ] == logprobs["tokens"]
            assert answer["usage"]["completion_tokens"] == 0
            assert h.engine.groups[-1].sampling.num_prompt_logprobs == 1

    run(body)


def test_echo_with_logprobs_and_output_covers_both() -> None:
    async def body(h: Harness) -> None:
        options = {"echo": True, "logprobs": 2, "max_tokens": 3, "n": 2}
        whole = (await h.complete("the fox", **options)).json()
        check_completion(whole)
        num_prompt = len(_ids(h, "the fox"))
        for choice in whole["choices"]:
            assert choice["text"] == "the foxHel"
            assert len(choice["logprobs"]["tokens"]) == num_prompt + 3
            assert choice["logprobs"]["text_offset"][-3:] == [7, 8, 9]
        chunks = events_of(await h.complete("the fox", stream=True, **options))
        for index in (0, 1):
            assert text_of(chunks, index) == "the foxHel"
            parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [v for part in parts for v in part[name]] == whole["choices"][index]["logprobs"][name]

    run(body)


def test_echo_without_logprobs_asks_the_engine_for_none() -> None:
    async def body(h: Harness) -> None:
        answer = (await h.complete("the fox", echo=True, max_tokens=2)).json()
        assert answer["choices"][0]["text"] == "the foxHe" and answer["choices"][0]["logprobs"] is None
        assert h.engine.groups[0].sampling.num_prompt_logprobs is None

    run(body)


def test_echo_of_one_token_has_one_entry_without_a_score() -> None:
    async def body(h: Harness) -> None:
        answer = (await h.complete([47], echo=True, logprobs=0, max_tokens=0)).json()
        assert answer["choices"][0]["logprobs"] == {
            "tokens": ["H"],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [0],
        }

    run(body)


def test_max_tokens_0_without_echo_gives_an_empty_answer() -> None:
    """Case 23: the engine lives on."""

    async def body(h: Harness) -> None:
        answer = (await h.complete(max_tokens=0)).json()
        assert answer["choices"][0]["text"] == "" and answer["choices"][0]["finish_reason"] == "length"
        assert (await h.complete()).status_code == 200

    run(body)


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_over_the_limit_is_a_400_with_both_numbers(stream: bool) -> None:
    """Case 29."""

    async def body(h: Harness) -> None:
        error = error_of(await h.complete([9] * 250, max_tokens=7, stream=stream), 400)
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 256 tokens" in error["message"]
        assert "257 tokens (250 in the prompt, 7 in the completion)" in error["message"]
        assert "prompt is too long" in error["message"]  # what LangChain looks for
        assert (await h.complete([9] * 250, max_tokens=6, stream=stream)).status_code == 200
        error = error_of(await h.complete([9] * 300, stream=stream), 400)
        assert "300 in the prompt" in error["message"]

    run(body)


def test_number_of_choices_is_bounded_over_prompts_and_n() -> None:
    async def body(h: Harness) -> None:
        assert error_of(await h.complete(["a"] * 5, n=2), 400)["param"] == "n"
        assert (await h.complete(["a"] * 4, n=2, max_tokens=1)).status_code == 200

    run(body, max_choices=8)


def test_log_probabilities_that_an_answer_collects_are_bounded() -> None:
    async def body(h: Harness) -> None:
        options = {"logprobs": 5, "max_tokens": 2000, "n": 100}
        error = error_of(await h.complete(**options), 400)
        assert error["param"] == "logprobs" and "1200000" in error["message"]
        assert (
            error_of(await h.complete([9] * 2000, echo=True, **{**options, "max_tokens": 0}), 400)["param"]
            == "logprobs"
        )
        assert not h.engine.groups
        assert (await h.complete(stream=True, **{**options, "n": 2})).status_code == 200

    run(body, max_model_len=4096)


def test_absurd_max_tokens_is_a_400_whatever_waits_in_the_queue() -> None:
    async def body(h: Harness) -> None:
        h.engine.script.admits = False
        waiting = asyncio.ensure_future(h.complete(max_tokens=100))
        await until(lambda: bool(h.engine.groups), "the queue to have one")
        for max_tokens in (10**6, 2**70):
            assert error_of(await h.complete(max_tokens=max_tokens), 400)["code"] == "context_length_exceeded"
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    run(body)
