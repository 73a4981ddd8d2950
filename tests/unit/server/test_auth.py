"""API keys: what is guarded, by which header, and that nothing slips past."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
from starlette.routing import Route

from server.auth import ALWAYS_OPEN, ApiKeys
from tests.asgi_calls import call, http_scope
from tests.http_harness import Harness, error_of, run
from tests.openai_shapes import check_error

KEYS = ("sk-first", "sk-second")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "Bearer wrong")],
        [("authorization", "Bearer ")],
        [("authorization", "sk-first")],
        [("authorization", "Basic sk-first")],
        [("authorization", "Bearer sk-first"), ("authorization", "Bearer sk-first")],
        [("authorization", "Bearer sk-first, Bearer sk-second")],
        [("x-api-key", "sk-first")],
        [("authorization", "Bearer sk-firs")],
        [("authorization", "Bearer SK-FIRST")],
    ],
)
def test_request_without_exactly_one_good_key_is_a_401(headers: list[tuple[str, str]]) -> None:
    async def body(h: Harness) -> None:
        response = await h.client.get("/v1/models", headers=headers)
        error = error_of(response, 401)
        check_error(response.json())
        assert error["type"] == "authentication_error" and error["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert "sk-" not in response.text

    run(body, api_keys=KEYS)


@pytest.mark.parametrize("value", ["Bearer sk-first", "bearer sk-second", "Bearer  sk-first"])
def test_any_of_the_keys_opens(value: str) -> None:
    async def body(h: Harness) -> None:
        assert (await h.client.get("/v1/models", headers={"authorization": value})).status_code == 200

    run(body, api_keys=KEYS)


def test_every_route_but_health_wants_a_key() -> None:
    """All routes of the application, by enumeration, so that a new one cannot be forgotten."""

    async def body(h: Harness) -> None:
        assert all(isinstance(route, Route) for route in h.app.routes)
        routes = [(route.path, route.methods or set()) for route in h.app.routes if isinstance(route, Route)]
        paths = {path for path, _ in routes}
        assert {"/v1/chat/completions", "/metrics", "/openapi.json", "/health"} <= paths
        for path, methods in routes:
            for method in sorted(methods | {"OPTIONS", "HEAD"}):
                response = await h.client.request(method, path.replace("{model_id:path}", "x"))
                assert (response.status_code == 401) == (path not in ALWAYS_OPEN), (method, path)
        assert {path for path, _ in routes if path in ALWAYS_OPEN} == ALWAYS_OPEN

    run(body, api_keys=KEYS)


STRANGE_PATHS = (
    *("//v1/models", "/v1/../v1/models", "/v1/models/", "/V1/models", "/health/../v1/models", "/health/", "//health"),
    *("/metrics", "/v1/models/x/y", "/docs", "/redoc", "/", "", "/health;/v1/models", "/livez%00", "/invocations"),
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE"])
def test_paths_that_look_different_are_guarded(method: str) -> None:
    async def body(h: Harness) -> None:
        for path in STRANGE_PATHS:
            answer = await call(h.app, http_scope(path, method))
            assert answer.status == 401, path
            assert answer.headers["x-request-id"]

    run(body, api_keys=KEYS)


def test_metrics_may_be_opened_alone() -> None:
    async def body(h: Harness) -> None:
        assert (await h.client.get("/metrics")).status_code == 200
        assert (await h.client.get("/v1/slo")).status_code == 401

    run(body, api_keys=KEYS, metrics_without_key=True)


def test_websocket_is_closed() -> None:
    async def body(h: Harness) -> None:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        scope = {**http_scope("/v1/models"), "type": "websocket", "subprotocols": []}
        await h.app(scope, receive, send)
        assert [message["type"] for message in sent] == ["websocket.close"]

    run(body, api_keys=KEYS)


def test_all_keys_are_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No early exit: the time tells nothing of which key was nearly right."""
    compared = []
    real = hmac.compare_digest

    def counting(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return real(left, right)

    monkeypatch.setattr("server.auth.hmac.compare_digest", counting)
    keys = ApiKeys(["a", "b", "c"])
    for header in (b"Bearer a", b"Bearer c", b"Bearer x"):
        compared.clear()
        keys.tenant_of([header])
        assert len(compared) == 3
    assert all(len(left) == len(right) == 32 for left, right in compared)


def test_preflight_passes_only_where_cors_is_on() -> None:
    preflight = {"origin": "http://page", "access-control-request-method": "POST"}

    async def on(h: Harness) -> None:
        response = await h.client.options("/v1/models", headers=preflight)
        assert response.status_code == 200 and response.headers["access-control-allow-origin"] == "http://page"
        other = await h.client.options("/v1/models", headers=preflight | {"origin": "http://evil"})
        assert "access-control-allow-origin" not in other.headers
        assert (await h.client.get("/v1/models", headers=preflight)).status_code == 401

    async def off(h: Harness) -> None:
        assert (await h.client.options("/v1/models", headers=preflight)).status_code == 401
        response = await h.client.get("/health", headers=preflight)
        assert "access-control-allow-origin" not in response.headers

    run(on, api_keys=KEYS, cors_origins=("http://page",))
    run(off, api_keys=KEYS)


def test_tenant_is_the_same_for_one_key_and_tells_nothing_of_it() -> None:
    async def body(h: Harness) -> None:
        for key in ("sk-first", "sk-first", "sk-second"):
            await h.client.post("/v1/completions", json={"prompt": "a"}, headers={"authorization": f"Bearer {key}"})
        first, again, second = (group.tenant for group in h.engine.groups)
        assert first == again != second and "sk" not in first

    run(body, api_keys=KEYS)


def test_without_keys_everything_is_open() -> None:
    async def body(h: Harness) -> None:
        assert (await h.client.get("/v1/models")).status_code == 200

    run(body)
