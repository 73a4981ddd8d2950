"""Words to tokens, by what servers of four kinds answer. Their tokenizer here makes 3 tokens of 2 words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadgen.calibration import Calibration, calibrate
from loadgen.config import BenchConfig

Answer = Callable[[str, dict[str, Any]], tuple[int, object]]
TEMPLATE_TOKENS = 21


def _num_tokens(text: str) -> int:
    return len(text.split()) * 3 // 2


def _vllm(path: str, body: dict[str, Any]) -> tuple[int, object]:
    if path != "/tokenize":
        return 500, {}
    if "messages" in body:
        return 200, {"count": _num_tokens(body["messages"][0]["content"]) + TEMPLATE_TOKENS, "tokens": []}
    return 200, {"count": _num_tokens(body["prompt"]) + 1}


def _llama_cpp(path: str, body: dict[str, Any]) -> tuple[int, object]:
    """It takes what it does not know for an empty text."""
    if path == "/tokenize":
        return 200, {"tokens": list(range(_num_tokens(body.get("content", ""))))}
    return _openai(path, body)


def _openai(path: str, body: dict[str, Any]) -> tuple[int, object]:
    if path == "/tokenize":
        return 404, {"error": {"message": "unknown path"}}
    assert body["max_tokens"] == 1
    assert "stream" not in body
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    return 200, {"usage": {"prompt_tokens": _num_tokens(text) + TEMPLATE_TOKENS}}


def _silent(path: str, _: dict[str, Any]) -> tuple[int, object]:
    return (404, {}) if path == "/tokenize" else (200, {"choices": []})


def _constant(path: str, _: dict[str, Any]) -> tuple[int, object]:
    return 200, {"count": 5, "usage": {"prompt_tokens": 5}}


def _calibrate(answer: Answer, **options: Any) -> tuple[Calibration, list[str]]:
    asked: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        status, body = answer(request.url.path, json.loads(request.content))
        return httpx.Response(status, json=body)

    async def run() -> Calibration:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://x") as http:
            return await calibrate(BenchConfig("http://x", **options), http, "m")

    return asyncio.run(run()), asked


@pytest.mark.parametrize(
    ("answer", "options", "expected"),
    [
        (_vllm, {}, Calibration(1.5, TEMPLATE_TOKENS, "tokenize")),
        (_vllm, {"api": "completions"}, Calibration(1.5, 1, "tokenize")),
        (_llama_cpp, {}, Calibration(1.5, 0, "tokenize")),
        (_llama_cpp, {"trace_path": "x"}, Calibration(1.5, TEMPLATE_TOKENS, "tokenize")),
        (_llama_cpp, {"trace_path": "x", "api": "completions"}, Calibration(1.5, 0, "tokenize")),
        (_openai, {"trace_path": "x"}, Calibration(1.5, TEMPLATE_TOKENS, "usage")),
        (_openai, {"trace_path": "x", "api": "completions"}, Calibration(1.5, TEMPLATE_TOKENS, "usage")),
        (_silent, {"trace_path": "x"}, Calibration()),
        (_constant, {"trace_path": "x"}, Calibration()),
    ],
)
def test_each_server_is_asked_in_its_own_way(answer: Answer, options: dict[str, Any], expected: Calibration) -> None:
    assert _calibrate(answer, **options)[0] == expected


def test_no_answer_is_generated_for_a_load_without_a_trace_and_none_is_asked_for_where_it_is_off() -> None:
    calibration, asked = _calibrate(_openai)
    assert calibration == Calibration()
    assert set(asked) == {"/tokenize"}
    assert _calibrate(_vllm, calibrate=False) == (Calibration(), [])


def test_a_server_that_breaks_off_is_not_fatal() -> None:
    def broken(path: str, _: dict[str, Any]) -> tuple[int, object]:
        raise httpx.ReadError(path)

    assert _calibrate(broken, trace_path="x")[0] == Calibration()


def test_words_are_what_makes_the_tokens() -> None:
    calibration = Calibration(1.5)
    assert [calibration.words_for(n) for n in (-3, 0, 3, 300)] == [0, 0, 2, 200]
