"""Cached tokens in usage: always their sum, and by tier only where there are tiers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.http_harness import Harness, events_of, run
from tests.openai_shapes import check_chat_chunk, check_chat_completion, check_completion
from tests.tier_records import kv_tiers

STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def _add_tiers(h: Harness) -> None:
    h.engine.ready = msgspec.structs.replace(h.engine.ready, kv_tiers=kv_tiers())
    h.engine.become_ready()


def _script(h: Harness) -> None:
    script = h.engine.script
    script.num_cached_tokens, script.num_host_cached_tokens, script.num_disk_cached_tokens = 48, 32, 12


@pytest.mark.parametrize("has_tiers", [False, True])
def test_usage_says_where_cached_tokens_were_where_there_are_tiers(has_tiers: bool) -> None:
    by_tier = {"cached_tokens_by_tier": {"device": 4, "host": 32, "disk": 12}} if has_tiers else {}
    expected = {"cached_tokens": 48} | by_tier

    async def body(h: Harness) -> None:
        _script(h)
        if has_tiers:
            _add_tiers(h)
        chat, text = (await h.chat()).json(), (await h.complete()).json()
        check_chat_completion(chat)
        check_completion(text)
        chunks = events_of(await h.chat(**STREAMED))
        for chunk in chunks:
            check_chat_chunk(chunk)
        for usage in (chat["usage"], text["usage"], chunks[-1]["usage"]):
            assert usage["prompt_tokens_details"] == expected

    run(body)


def test_an_engine_that_restarts_without_tiers_tells_none() -> None:
    async def body(h: Harness) -> None:
        _script(h)
        _add_tiers(h)
        assert "cached_tokens_by_tier" in (await h.chat()).text
        h.engine.ready = msgspec.structs.replace(h.engine.ready, kv_tiers=None)
        h.engine.become_ready()
        assert "cached_tokens_by_tier" not in (await h.chat()).text

    run(body)


def test_the_document_describes_both_forms() -> None:
    async def body(h: Harness) -> None:
        schemas = (await h.client.get("/openapi.json")).json()["components"]["schemas"]
        assert schemas["CachedTokens"]["required"] == ["cached_tokens"]
        assert set(schemas["TierTokens"]["properties"]) == {"device", "host", "disk"}
        asked = schemas["ChatRequest"]["properties"]
        assert {"prompt_cache_key", "prompt_cache_retention"} <= set(asked)

    run(body)
