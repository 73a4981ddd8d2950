"""Whose a request is: the key's, or whom the body names."""

from __future__ import annotations

import logging

import pytest

from tests.http_harness import Harness, run

KEYS = ("sk-first", "sk-second")


def tenants(h: Harness) -> list[str]:
    return [group.tenant for group in h.engine.groups]


def test_without_keys_a_tenant_is_whom_the_body_names() -> None:
    async def body(h: Harness) -> None:
        await h.chat(user="ada@example.org")
        await h.complete(user="ada@example.org")
        await h.chat(user="bob")
        await h.chat(safety_identifier="bob")
        await h.chat(safety_identifier="bob", user="ada@example.org")
        ada, same, bob, also_bob, bob_again = tenants(h)
        assert ada == same != bob == also_bob == bob_again
        assert all(name and "ada" not in name and "bob" not in name for name in tenants(h))

    run(body)


def test_nobody_named_is_one_tenant() -> None:
    async def body(h: Harness) -> None:
        await h.chat()
        await h.chat(user="", safety_identifier=None)
        assert tenants(h) == ["", ""]

    run(body)


def test_with_keys_the_key_counts_alone() -> None:
    async def body(h: Harness) -> None:
        first = {"authorization": "Bearer sk-first"}
        for headers, user in (
            (first, "ada"),
            (first, "bob"),
            ({"authorization": "Bearer sk-second"}, "ada"),
        ):
            await h.client.post("/v1/completions", json={"prompt": "a", "user": user}, headers=headers)
        of_first, again, of_second = tenants(h)
        assert of_first == again != of_second

    run(body, api_keys=KEYS)


def test_a_name_of_any_length_makes_a_short_tenant() -> None:
    async def body(h: Harness) -> None:
        await h.chat(user="x" * 100_000)
        await h.chat(user="x" * 99_999)
        one, other = tenants(h)
        assert one != other and len(one) == len(other) <= 16

    run(body)


def test_no_name_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def body(h: Harness) -> None:
        assert (await h.chat(user="ada@example.org")).status_code == 200

    run(body)
    assert caplog.records and "ada@example" not in caplog.text
