"""The official `openai` client against a real server with the tiny model; every answer is checked strictly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from tests.integration.conftest import LiveServer
from tests.openai_shapes import (
    check_chat_chunk,
    check_chat_completion,
    check_completion,
    check_completion_chunk,
    check_error,
    check_model,
)

USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story about the sea."}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def client(live_server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="unused", max_retries=0, timeout=30) as client:
        yield client


def _json(answer: Any) -> dict[str, Any]:
    """What the server sent: the client keeps unknown fields and drops none."""
    body: dict[str, Any] = json.loads(answer.model_dump_json(exclude_unset=True))
    return body


def test_chat_is_answered_with_usage_and_headers(client: openai.OpenAI, live_server: LiveServer) -> None:
    raw = client.chat.completions.with_raw_response.create(model=live_server.model, messages=USER, **GREEDY)
    body = json.loads(raw.text)
    check_chat_completion(body)
    assert raw.headers["x-request-id"] and int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.headers["x-slo-class"] == raw.headers["x-slo-granted"] == "standard"
    answer = raw.parse()
    assert answer._request_id == raw.headers["x-request-id"]
    assert answer.choices[0].message.content == body["choices"][0]["message"]["content"] != ""
    assert answer.choices[0].finish_reason in ("stop", "length")
    tokens = httpx.post(f"{live_server.url}/tokenize", json={"messages": USER}).json()
    assert answer.usage is not None and answer.usage.prompt_tokens == tokens["count"]


def test_prompt_seen_before_comes_from_the_cache_unless_the_salt_differs(
    client: openai.OpenAI, live_server: LiveServer
) -> None:
    def cached(salt: str) -> int:
        answer = client.chat.completions.create(
            model=live_server.model, messages=USER, extra_body={"cache_salt": salt}, **GREEDY
        )
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert [cached("a") > 0, cached("a") > 0, cached("b") > 0, cached("b") > 0] == [False, True, False, True]


def test_streamed_text_equals_the_whole_text(client: openai.OpenAI, live_server: LiveServer) -> None:
    """Cases 15, 16 and 19 on a model that emits arbitrary bytes."""
    for max_tokens in (1, 2, 3, 40):
        options = {**GREEDY, "max_tokens": max_tokens, "extra_body": {"ignore_eos": True}}
        whole = client.chat.completions.create(model=live_server.model, messages=USER, **options)
        chunks = list(
            client.chat.completions.create(
                model=live_server.model, messages=USER, stream=True, stream_options={"include_usage": True}, **options
            )
        )
        for chunk in chunks:
            check_chat_chunk(_json(chunk))
        assert _text(chunks) == whole.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
        assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == ["length"]


def _text(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)


def test_choices_of_a_stream_are_told_apart(client: openai.OpenAI, live_server: LiveServer) -> None:
    """Case 18."""
    options: dict[str, Any] = {"n": 3, "seed": 5, "max_tokens": 12, "temperature": 1.0}
    whole = client.chat.completions.create(model=live_server.model, messages=USER, **options)
    chunks = list(client.chat.completions.create(model=live_server.model, messages=USER, stream=True, **options))
    assert [_text(chunks, i) for i in range(3)] == [choice.message.content for choice in whole.choices]
    assert len({choice.message.content for choice in whole.choices}) == 3
    for index in range(3):
        choices = [c for chunk in chunks for c in chunk.choices if c.index == index]
        assert [c.delta.role for c in choices if c.delta.role] == ["assistant"]
        assert len([c for c in choices if c.finish_reason]) == 1 and choices[-1].finish_reason


def test_seed_repeats_an_answer_whatever_else_is_running(client: openai.OpenAI, live_server: LiveServer) -> None:
    async def both(seed: int, company: int) -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{live_server.url}/v1", api_key="x", max_retries=0) as async_client:
            calls = [
                async_client.chat.completions.create(
                    model=live_server.model, messages=USER, seed=s, max_tokens=16, temperature=1.0
                )
                for s in (seed, *range(100, 100 + company))
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    alone, *_ = asyncio.run(both(7, 0))
    beside, *others = asyncio.run(both(7, 4))
    assert alone == beside and alone not in others


def test_async_client_streams_side_by_side(live_server: LiveServer) -> None:
    async def one(client: openai.AsyncOpenAI, tier: Any) -> tuple[str, str | None]:
        stream = await client.chat.completions.create(
            model=live_server.model, messages=USER, stream=True, service_tier=tier, **GREEDY
        )
        chunks = [chunk async for chunk in stream]
        return _text(chunks), chunks[-1].service_tier

    async def all_of_them() -> list[tuple[str, str | None]]:
        async with openai.AsyncOpenAI(base_url=f"{live_server.url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(one(client, tier) for tier in ("priority", "fast", "default", "flex") * 3))

    results = asyncio.run(all_of_them())
    assert [tier for _, tier in results] == ["priority", "fast", "default", "flex"] * 3
    assert len({text for text, _ in results}) == 1


def test_stop_ends_the_text_before_it(client: openai.OpenAI, live_server: LiveServer) -> None:
    """Case 17."""
    full = client.chat.completions.create(model=live_server.model, messages=USER, **GREEDY).choices[0].message.content
    assert full is not None and len(full) > 8
    stop = full[4:7]
    answer = client.chat.completions.create(model=live_server.model, messages=USER, stop=[stop], **GREEDY)
    assert answer.choices[0].message.content == full[: full.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_chat_logprobs_cover_every_token(client: openai.OpenAI, live_server: LiveServer) -> None:
    """Case 22: greedy, so that the first alternative is the chosen token."""
    answer = client.chat.completions.create(
        model=live_server.model, messages=USER, logprobs=True, top_logprobs=20, extra_body={"top_k": 1}, **GREEDY
    )
    check_chat_completion(_json(answer))
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    entries = answer.choices[0].logprobs.content
    assert answer.usage is not None and len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert len(entry.top_logprobs) == 20
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0.0
        assert all(-9999.0 <= top.logprob <= 0.0 for top in entry.top_logprobs)


def test_text_completion_whole_and_streamed(client: openai.OpenAI, live_server: LiveServer) -> None:
    whole = client.completions.create(model=live_server.model, prompt="Once upon a time", **GREEDY)
    check_completion(_json(whole))
    options: Any = {"include_usage": True}
    chunks = list(
        client.completions.create(
            model=live_server.model, prompt="Once upon a time", stream=True, stream_options=options, **GREEDY
        )
    )
    for chunk in chunks:
        check_completion_chunk(_json(chunk))
    assert "".join(c.text for chunk in chunks for c in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage


def test_scores_of_an_echoed_prompt_equal_those_of_its_generation(
    client: openai.OpenAI, live_server: LiveServer
) -> None:
    """Cases 22 and 23: the request that lm-eval sends for a loglikelihood, with ids and with text."""
    generated = client.completions.create(
        model=live_server.model,
        prompt="The water that",
        logprobs=1,
        extra_body={"return_token_ids": True, "ignore_eos": True},
        **GREEDY,
    )
    choice: Any = generated.choices[0]
    ids = choice.prompt_token_ids + choice.token_ids
    for max_tokens in (0, 1):
        scored = client.completions.create(
            model=live_server.model, prompt=ids, echo=True, logprobs=1, max_tokens=max_tokens, temperature=0, seed=1
        )
        check_completion(_json(scored))
        logprobs = scored.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
        assert logprobs.tokens is not None and len(logprobs.tokens) == len(ids) + max_tokens
        assert logprobs.token_logprobs[0] is None
        first = len(choice.prompt_token_ids)
        assert logprobs.token_logprobs[first : len(ids)] == pytest.approx(choice.logprobs.token_logprobs, abs=1e-4)
        for logprob, top in zip(logprobs.token_logprobs[first:], logprobs.top_logprobs[first:], strict=True):
            assert logprob == max(top.values())  # greedy, as lm-eval decides it
    text = client.completions.create(
        model=live_server.model, prompt="The water that", echo=True, logprobs=1, max_tokens=0
    )
    assert text.choices[0].text == "The water that" and text.choices[0].finish_reason == "length"


def test_models_are_listed_and_retrieved(client: openai.OpenAI, live_server: LiveServer) -> None:
    (card,) = client.models.list().data
    check_model(_json(card))
    assert card.id == live_server.model
    assert client.models.retrieve(live_server.model).id == live_server.model


def test_mistakes_raise_the_clients_own_exceptions(client: openai.OpenAI, live_server: LiveServer) -> None:
    """Cases 21, 29, 30."""

    def chat(**options: Any) -> Any:
        return client.chat.completions.create(**{"model": live_server.model, "messages": USER, **options})

    with pytest.raises(openai.NotFoundError) as missing:
        chat(model="gpt-x")
    assert missing.value.code == "model_not_found" and missing.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none/such")
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            chat(max_tokens=1024, stream=stream)
        assert long.value.code == "context_length_exceeded" and "1024" in str(long.value)
        check_error(long.value.response.json())
    with pytest.raises(openai.BadRequestError) as tools:
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    assert tools.value.param == "tools" and "not supported" in str(tools.value)
    with pytest.raises(openai.BadRequestError):
        chat(response_format={"type": "json_object"})
    with pytest.raises(openai.BadRequestError):
        chat(seed=2**64)


def test_clients_timeout_ends_the_work(live_server: LiveServer) -> None:
    """Case 4: not streamed, and the client gives up."""
    cancelled = live_server.metric('headrace_requests_slo_total{outcome="cancelled"')
    with (
        openai.OpenAI(base_url=f"{live_server.url}/v1", api_key="x", max_retries=0, timeout=0.3) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        client.completions.create(
            model=live_server.model, prompt="a", n=8, max_tokens=1000, extra_body={"ignore_eos": True}
        )
    deadline_s = time.monotonic() + 5.0
    while live_server.metric("headrace_requests_running"):
        assert time.monotonic() < deadline_s, "the engine still works for a client that left"
    assert live_server.metric('headrace_requests_slo_total{outcome="cancelled"') == cancelled + 1
    assert live_server.metric("headrace_kv_cache_usage_ratio") == 0


def test_stream_helper_and_raw_stream_work(client: openai.OpenAI, live_server: LiveServer) -> None:
    full = client.chat.completions.create(model=live_server.model, messages=USER, **GREEDY).choices[0].message.content
    assert full is not None
    stop = full[-3:]  # the helper takes an answer that ends at its limit for an error
    with client.chat.completions.stream(model=live_server.model, messages=USER, stop=stop, **GREEDY) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == full[: full.index(stop)]
    with client.chat.completions.with_streaming_response.create(
        model=live_server.model, messages=USER, stream=True, **GREEDY
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache" and response.headers["x-accel-buffering"] == "no"
    assert lines[-1] == "data: [DONE]" and lines.count("data: [DONE]") == 1
