"""The small routes: health, models, metrics, version, slo, tokenize, errors of the framework, the document."""

from __future__ import annotations

import random

import pytest

from engine.client import EngineState
from engine.errors import EngineDied
from engine.messages import Progress
from scheduler.slo import Outcome
from server.app import PATHS
from tests.asgi_calls import call, http_scope
from tests.http_harness import MODEL_ID, Harness, error_of, run
from tests.openai_shapes import check_error, check_model

USER = {"role": "user", "content": "a"}


def test_health_follows_the_engine_and_liveness_does_not() -> None:
    """Cases 12 and 13: 503 while loading, stalled or dead; /livez stays 200."""

    async def body(h: Harness) -> None:
        async def statuses() -> tuple[int, int, int]:
            responses = [await h.client.get(path) for path in ("/livez", "/readyz", "/health")]
            assert responses[1].json() == responses[2].json()
            heads = [await h.client.head(path) for path in ("/livez", "/readyz", "/health")]
            assert [r.status_code for r in heads] == [r.status_code for r in responses]
            return responses[0].status_code, responses[1].status_code, responses[2].status_code

        assert await statuses() == (200, 200, 200)
        for state in (EngineState.STARTING, EngineState.STALLED, EngineState.DEAD):
            h.engine.engine.state = state
            assert await statuses() == (200, 503, 503)
            assert (await h.client.get("/readyz")).json()["status"] == state.value
            error = error_of(await h.chat(), 503)
            assert error["code"] == "engine_unavailable" and state.value in error["message"]

    run(body)


def test_readiness_tells_the_progress_of_loading() -> None:
    async def body(h: Harness) -> None:
        h.engine.engine.state, h.engine.engine.ready = EngineState.STARTING, None
        h.engine.engine.dispatch(Progress(phase="loading weights", fraction=0.5))
        response = await h.client.get("/readyz")
        assert response.json() == {
            "status": "starting",
            "progress": {"phase": "loading weights", "fraction": 0.5},
        }
        assert response.headers["cache-control"] == "no-store"
        h.engine.engine.disconnect(EngineDied("gone"))
        assert (await h.client.get("/readyz")).json() == {"status": "dead"}, (
            "that progress is of a process that is gone"
        )

    run(body)


def test_model_is_not_listed_before_it_is_loaded_and_stays_listed_after_a_death() -> None:
    """Case 13."""

    async def body(h: Harness) -> None:
        ready, h.engine.engine.ready = h.engine.engine.ready, None
        assert error_of(await h.client.get("/v1/models"), 503)["code"] == "engine_unavailable"
        h.engine.engine.ready = ready
        h.engine.engine.disconnect(EngineDied("gone"))
        assert (await h.client.get("/v1/models")).status_code == 200

    run(body)


def test_model_is_described_with_its_length_and_ids_may_have_slashes() -> None:
    async def body(h: Harness) -> None:
        listed = (await h.client.get("/v1/models")).json()
        assert listed["object"] == "list" and len(listed["data"]) == 1
        check_model(listed["data"][0])
        assert listed["data"][0]["id"] == MODEL_ID and listed["data"][0]["max_model_len"] == 256
        assert (await h.client.get(f"/v1/models/{MODEL_ID}")).json() == listed["data"][0]
        for model in ("none", "../../etc/passwd", "%2e%2e%2fx", ""):
            error = error_of(await h.client.get(f"/v1/models/{model}"), 404)
            assert error["code"] in ("model_not_found", "unknown_url")

    run(body)


def test_metrics_show_outcomes_and_stay_small_whatever_is_asked_for() -> None:
    """Ten requests of each kind make as many series as one: labels come from tables, never from a request."""

    async def body(h: Harness) -> None:
        await h.chat()
        await h.chat(model="unknown")
        await h.client.get("/nope")
        before = (await h.client.get("/metrics")).text.count("\n")
        source = random.Random(0)
        for _ in range(50):
            word = f"{source.random()}"
            await h.chat(model=word)
            await h.client.get(f"/{word}")
            await h.client.get(f"/v1/models/{word}")
            await h.client.request("GET", "/health", headers={"x-request-id": word})
        response = await h.client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        text = response.text
        assert text.count("\n") <= before + 4  # the new combinations of route and status
        assert 'headrace_requests_slo_total{outcome="met",slo_class="standard"} 1.0' in text
        assert 'headrace_http_responses_total{handler="/v1/chat/completions",method="POST",status="404"} 51.0' in text
        assert 'headrace_http_responses_total{handler="none",method="GET",status="404"} 51.0' in text

    run(body)


def test_every_route_has_its_own_label_in_the_metrics() -> None:
    async def body(h: Harness) -> None:
        assert {getattr(route, "path", None) for route in h.app.routes} == set(PATHS)

    run(body)


def test_slo_report_counts_what_was_served() -> None:
    async def body(h: Harness) -> None:
        await h.chat()
        report = (await h.client.get("/v1/slo")).json()
        assert report["default_class"] == "standard"
        assert (report["scheduler_policy"], report["admission"]) == ("deadline", None)
        by_name = {item["name"]: item for item in report["classes"]}
        assert list(by_name) == ["realtime", "interactive", "standard", "batch"]
        assert by_name["standard"]["counts"][Outcome.MET.value] == 1
        assert all(item["open"] and item["floor"] is None for item in report["classes"])

    run(body)


def test_version_is_told() -> None:
    async def body(h: Harness) -> None:
        assert (await h.client.get("/version")).json() == {"version": "1.2.3"}

    run(body)


def test_texts_and_conversations_are_tokenized_and_back() -> None:
    async def body(h: Harness) -> None:
        text = "hi <|im_end|> 😀"
        answer = (await h.client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
        assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) > 0
        assert answer["max_model_len"] == 256
        assert 4 in answer["tokens"]
        back = (await h.client.post("/detokenize", json={"tokens": answer["tokens"], "model": MODEL_ID})).json()
        assert back == {"prompt": text}
        chat = {"messages": [{"role": "user", "content": "hi"}]}
        opened = (await h.client.post("/tokenize", json=chat)).json()
        closed = (await h.client.post("/tokenize", json=chat | {"add_generation_prompt": False})).json()
        assert opened["tokens"][: closed["count"]] == closed["tokens"] and opened["count"] > closed["count"]
        assert opened["token_strs"] is None

    run(body)


@pytest.mark.parametrize(
    ("path", "request_body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [USER], "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": [USER], "chat_template_kwargs": {"tools": 1}}, "chat_template_kwargs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [999_999]}, "tokens"),
        ("/detokenize", {"tokens": [2**63]}, "tokens[0]"),
    ],
)  # fmt: skip
def test_wrong_texts_and_tokens_are_a_400(path: str, request_body: dict[str, object], param: str) -> None:
    async def body(h: Harness) -> None:
        assert error_of(await h.client.post(path, json=request_body), 400)["param"] == param

    run(body)


def test_empty_text_and_no_tokens_are_fine() -> None:
    async def body(h: Harness) -> None:
        assert (await h.client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []
        assert (await h.client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}

    run(body)


def test_unknown_urls_and_methods_are_errors_in_openais_shape() -> None:
    async def body(h: Harness) -> None:
        for url in (
            "/",
            "/v1/embeddings",
            "/v1/chat/completions/",
            "/docs",
            "/v1/responses",
            "/ping",
            "/" + "x" * 9000,
        ):
            response = await h.client.post(url, json={})
            check_error(response.json())
            assert error_of(response, 404)["type"] == "not_found_error"
            assert len(response.content) < 1000
        response = await h.client.get("/v1/chat/completions")
        assert error_of(response, 405)["code"] == "method_not_allowed" and response.headers["allow"] == "POST"
        answer = await call(h.app, http_scope("/a\r\nb\x1b", "GET"))
        assert answer.status == 404 and "\n" not in answer.error["message"]

    run(body)


def test_document_describes_every_route_and_resolves() -> None:
    async def body(h: Harness) -> None:
        document = (await h.client.get("/openapi.json")).json()
        documented = {path.replace("{model_id}", "{model_id:path}") for path in document["paths"]}
        assert documented == set(PATHS) - {"/openapi.json"}
        text = str(document)
        for name in document["components"]["schemas"]:
            assert name.replace("_", "").isalnum()
        for reference in set(text.split("'$ref': '#/components/schemas/")[1:]):
            assert reference.split("'")[0] in document["components"]["schemas"]
        body_schema = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"][
            "schema"
        ]
        assert body_schema == {"$ref": "#/components/schemas/CompletionRequest"}

    async def hidden(h: Harness) -> None:
        assert (await h.client.get("/openapi.json")).status_code == 404

    run(body)
    run(hidden, serve_openapi=False)


def test_unexpected_failure_is_a_plain_500_under_the_requests_id(caplog: pytest.LogCaptureFixture) -> None:
    async def body(h: Harness) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("secret /etc/path 0x7f00")

        h.service.places.take = broken  # type: ignore[assignment,method-assign]
        response = await h.client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "my-id"})
        error = error_of(response, 500)
        assert error["type"] == "server_error" and "secret" not in response.text and "/" not in error["message"]
        assert response.headers["x-should-retry"] == "false"
        assert h.outcomes() == {"offered": 1, "failed": 1}

    run(body)
    assert any("my-id" in record.getMessage() for record in caplog.records)
