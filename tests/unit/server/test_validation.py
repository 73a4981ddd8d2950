"""What a request may say: every refusal is a 400 that names the field, in bounded words; the engine hears nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.request_body import MAX_INLINE_BYTES
from server.validation import MAX_ERROR_CHARS, MAX_ERRORS
from tests.http_harness import Harness, error_of, run
from tests.openai_shapes import check_error

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
BOTH: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e15}, "temperature"),
    ({"temperature": 2.01}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": 0.01}, "top_k"),
    ({"top_k": 5.0}, "top_k"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": True}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty"),
    ({"repetition_penalty": 0.009}, "repetition_penalty"),
    ({"repetition_penalty": 100.5}, "repetition_penalty"),
    ({"logit_bias": {"5": 1e300}}, "logit_bias"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -(2**70)}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 10**9}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a" * 1025]}, "stop[0]"),
    ({"logit_bias": {"191222": -100}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop_token_ids": [191222]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": list(range(129))}, "stop_token_ids"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2**63}, "messages|prompt"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": 3}, "stream_options"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": "x" * 1025}, "cache_salt"),
    ({"prompt_cache_key": 7}, "prompt_cache_key"),
    ({"prompt_cache_key": ["k"]}, "prompt_cache_key"),
    ({"prompt_cache_retention": "25h"}, "prompt_cache_retention"),
    ({"prompt_cache_retention": 24}, "prompt_cache_retention"),
    ({"priority": 2**63}, "priority"),
    ({"user": 7}, "user"),
    ({"safety_identifier": {"id": "a"}}, "safety_identifier"),
    ({"service_tier": "gold"}, "service_tier"),
    ({"slo": {"class": "gold"}}, "slo.class"),
    ({"slo": {"ttft_ms": -1}}, "slo.ttft_ms"),
    ({"slo": 5}, "slo"),
    ({"guided_json": {"type": "hiccup"}}, "guided_json"),
    ({"guided_regex": "["}, "guided_regex"),
    ({"structured_outputs": {"regex": "(?<=x)+"}}, "structured_outputs"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"model": 5}, "model"),
]
ONLY_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0]"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]},
        "messages[0].content[0].type",
    ),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}
            ]
        },
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages[0].content[0].type"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"tools": [TOOL]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, "response_format"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
]
ONLY_TEXT: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": [999999]}, "prompt"),
    ({"prompt": [[-1]]}, "prompt"),
    ({"prompt": [2**70]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": {"a": 1}}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"best_of": 10**6}, "best_of"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "after"}, "suffix"),
]
NULLABLE = (
    *("model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "seed", "n", "stop", "stop_token_ids", "include_stop_str_in_output", "min_tokens", "ignore_eos"),
    *("skip_special_tokens", "spaces_between_special_tokens", "return_token_ids", "stream", "stream_options", "user"),
    *("cache_salt", "priority", "service_tier", "slo", "max_tokens", "logprobs", "metadata", "store"),
    *("prompt_cache_key", "prompt_cache_retention"),
)
ONLY_CHAT_NULLABLE = (
    *("max_completion_tokens", "top_logprobs", "tools", "tool_choice", "functions", "function_call", "response_format"),
    *("modalities", "audio", "chat_template", "chat_template_kwargs", "add_generation_prompt", "prediction"),
    *("continue_final_message", "parallel_tool_calls", "reasoning_effort", "verbosity", "safety_identifier"),
)
IGNORED = {
    "user": "u",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
    "store": True,
    "prompt_cache_options": {"mode": "x", "ttl": "1h"},
    "verbosity": "low",
    "reasoning_effort": "low",
    "parallel_tool_calls": True,
    "prediction": {"type": "content", "content": "x"},
    "spaces_between_special_tokens": False,
    "no_such_field": {"a": [1, {"b": None}]},
}


def _base(path: str) -> dict[str, Any]:
    return {"messages": [USER]} if path == CHAT else {"prompt": "hi"}


async def _refused(h: Harness, path: str, case: tuple[dict[str, Any], str]) -> None:
    change, param = case
    response = await h.client.post(path, json=_base(path) | change)
    error = error_of(response, 400)
    check_error(response.json())
    assert error["param"] in param.split("|"), (change, error)
    assert error["type"] == "invalid_request_error"
    assert len(response.content) < 3000


@pytest.mark.parametrize(
    ("path", "cases"),
    [(CHAT, BOTH), (TEXT, BOTH), (CHAT, ONLY_CHAT), (TEXT, ONLY_TEXT)],
    ids=["chat", "text", "only-chat", "only-text"],
)
def test_every_wrong_value_is_a_400_that_names_its_field(path: str, cases: list[tuple[dict[str, Any], str]]) -> None:
    """Cases 25, 26, 27, 28, and the rows on n, best_of, media parts, templates and structured output."""

    async def body(h: Harness) -> None:
        for case in cases:
            await _refused(h, path, case)
        assert not h.engine.groups
        # Only a prompt that is too long for this server counts as offered: the rest are the clients' mistakes.
        assert h.outcomes().get("offered", 0) == sum("|" in param for _, param in cases)
        assert (await h.client.post(path, json=_base(path))).status_code == 200

    run(body)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_null_means_absent_for_every_optional_field(path: str) -> None:
    """Case 24."""

    async def body(h: Harness) -> None:
        names = NULLABLE + (ONLY_CHAT_NULLABLE if path == CHAT else ("echo", "best_of", "suffix"))
        response = await h.client.post(path, json=_base(path) | dict.fromkeys(names))
        assert response.status_code == 200, response.text
        await h.client.post(path, json=_base(path))
        first, second = (group.sampling for group in h.engine.groups)
        assert (first.max_tokens, first.temperature, first.top_p) == (
            second.max_tokens,
            second.temperature,
            second.top_p,
        )
        assert first.seed != second.seed

    run(body)


def test_fields_that_mean_nothing_here_are_accepted() -> None:
    async def body(h: Harness) -> None:
        assert (await h.chat(**IGNORED)).status_code == 200
        empty = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "modalities": ["text"]}
        assert (await h.chat(**empty, stop=[], functions=[])).status_code == 200

    run(body)


def test_stop_takes_more_strings_than_openais_four() -> None:
    """lm-eval sends six of a task and the end token's text; the last is as good as the first."""
    stops = [f"never{index}" for index in range(15)]

    async def body(h: Harness) -> None:
        h.says("gamma delta END and more")
        choice = (await h.chat(stop=[*stops, " END"])).json()["choices"][0]
        assert (choice["message"]["content"], choice["stop_reason"]) == ("gamma delta", " END")

    run(body)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_cache_key_or_a_long_retention_keeps_the_prompt_longer(path: str) -> None:
    """OpenAI's schema gives the key no bounds."""

    async def body(h: Harness) -> None:
        for given, retention in (
            ({}, 1),
            ({"prompt_cache_key": None, "prompt_cache_retention": None}, 1),
            ({"prompt_cache_key": ""}, 1),
            ({"prompt_cache_retention": "in_memory"}, 1),
            ({"prompt_cache_key": "user-7"}, 2),
            ({"prompt_cache_key": "k" * 100_000}, 2),
            ({"prompt_cache_retention": "24h"}, 2),
            ({"prompt_cache_key": "k", "prompt_cache_retention": "in_memory"}, 2),
        ):
            assert (await h.client.post(path, json=_base(path) | given)).status_code == 200
            assert h.engine.groups[-1].retention == retention, given
            assert h.engine.groups[-1].cache_salt == "", "a key separates nothing"

    run(body)


def test_sampling_options_reach_the_engine() -> None:
    async def body(h: Harness) -> None:
        await h.chat(
            temperature=0.5, top_p=0, top_k=7, min_p=0.1, presence_penalty=1, frequency_penalty=-1,
            repetition_penalty=1.2, logit_bias={"5": -100}, seed=-3, min_tokens=2, max_tokens=9, ignore_eos=True,
            stop_token_ids=[9],
        )  # fmt: skip
        sampling = h.engine.groups[0].sampling
        assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0.5, 7, 0.1, -3)
        assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.2)
        assert sampling.logit_bias == {5: -100.0} and sampling.stop_token_ids == (9,)
        assert (sampling.min_tokens, sampling.max_tokens, sampling.ignore_eos) == (2, 9, True)
        assert 0 < sampling.top_p < 1e-3
        for top_k in (-1, 0, 420, 9_999_999, 10**30):
            await h.chat(top_k=top_k)
            assert h.engine.groups[-1].sampling.top_k == 0

    run(body)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "stop": "\\ud83d"}',
        b'{"messages": [{"role": "user", "content": "a"}], "model": "\\ud83d"}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"messages": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"}",
        b'{"messages": [{"role": "user", "content": "a"}], "seed": ' + b"1" * 100_000 + b"}",
        b'{"messages": [' + b"[]," * 700_000 + b"[]]}",
        b'{"messages": [' + b'{"role":"user","content":"a"},' * 60_000 + b"{}]}",
        b'{"messages": [{"role": "user", "content": "a"}], "x": {' + b'"k":1,' * 70_000 + b'"k":1}}',
        b'{"messages": [{"role": "user", "content": "a"}], "x": [' + b'"",' * 300_000 + b'""]}',
    ],
    ids=lambda raw: f"{bytes(raw[:60])!r}-{len(raw)}",
)  # fmt: skip
def test_body_that_is_no_request_is_a_bounded_400(raw: bytes) -> None:
    """Cases 26 and 30, and the rows on hostile JSON."""

    async def body(h: Harness) -> None:
        response = await h.client.post(CHAT, content=raw)
        error_of(response, 400)
        assert len(response.content) < 3000
        assert (await h.chat()).status_code == 200

    run(body)


def test_control_characters_are_ordinary_text() -> None:
    """Case 31: NUL and other C0 characters in content, stop and ids."""

    async def body(h: Harness) -> None:
        assert (await h.chat("a\x00b\x1b[31m\r\n", stop=["\x00"], user="\r\n\x00")).status_code == 200
        error = error_of(await h.chat(model="a\x00\r\nb\x1b"), 404)
        assert "\n" not in error["message"] and "\x1b" not in error["message"]

    run(body)


def test_error_text_is_bounded_and_says_nothing_of_the_inside() -> None:
    async def body(h: Harness) -> None:
        wrong = {"temperature": "t" * 10_000, "top_p": "p" * 10_000, "stop": ["s" * 5000] * 4}
        wrong |= dict.fromkeys(("n", "seed", "top_k", "min_p", "min_tokens", "ignore_eos", "stream"), "x" * 1000)
        wrong |= dict.fromkeys(("presence_penalty", "frequency_penalty", "priority", "max_tokens"), "x" * 1000)
        response = await h.chat(**wrong)
        message = error_of(response, 400)["message"]
        assert len(message) < MAX_ERRORS * MAX_ERROR_CHARS and "more" in message
        for inside in ("/", "pydantic", "server", "Traceback", "constrained", "str]"):
            assert inside not in message, (inside, message)

    run(body)


def test_unknown_model_is_a_404_and_an_absent_one_is_the_served_one() -> None:
    async def body(h: Harness) -> None:
        error = error_of(await h.chat(model="gpt-x"), 404)
        assert (error["code"], error["param"], error["type"]) == ("model_not_found", "model", "not_found_error")
        assert len(error_of(await h.chat(model="m" * 100_000), 404)["message"]) < 500
        assert (await h.chat(model="org/tiny-model")).status_code == 200

    run(body)


def test_body_of_another_type_than_json_is_refused() -> None:
    """A web page could send it without asking first."""

    async def body(h: Harness) -> None:
        raw = json.dumps({"messages": [USER]}).encode()
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            response = await h.client.post(CHAT, content=raw, headers={"content-type": content_type})
            assert error_of(response, 400)["param"] == "content-type"
        for content_type in ("application/json; charset=utf-8", "application/vnd.api+json"):
            response = await h.client.post(CHAT, content=raw, headers={"content-type": content_type})
            assert response.status_code == 200

    run(body)


def test_large_bodies_are_parsed_in_a_thread_with_the_same_result() -> None:
    async def body(h: Harness) -> None:
        response = await h.chat("hi", no_such_field="x" * MAX_INLINE_BYTES)
        assert response.status_code == 200
        error = error_of(await h.chat("hi", no_such_field="x" * MAX_INLINE_BYTES, n=0), 400)
        assert error["param"] == "n"

    run(body)


INTEGERS = (
    *("top_k", "seed", "n", "max_tokens", "min_tokens", "priority", "best_of", "logprobs", "top_logprobs"),
    *("max_completion_tokens", "prompt", "stop_token_ids", "truncate_prompt_tokens", "prompt_logprobs"),
)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_extreme_integers_are_a_400_or_have_a_meaning(path: str) -> None:
    async def body(h: Harness) -> None:
        for name in INTEGERS:
            for value in (-1, -(2**31), 2**31, 2**63, -(2**63) - 1, 10**30):
                request = _base(path) | {
                    "max_tokens": 1,
                    name: [value] if name in ("prompt", "stop_token_ids") else value,
                }
                response = await h.client.post(path, json=request)
                assert response.status_code in (200, 400), (name, value, response.text)

    run(body)


def test_a_message_names_its_field_once() -> None:
    async def body(h: Harness) -> None:
        for options in ({"top_logprobs": 1}, {"stream_options": {}}):
            message = error_of(await h.client.post(CHAT, json={"messages": [USER], **options}), 400)["message"]
            [name] = options
            assert message.startswith(f"{name} has a meaning only with")

    run(body)
