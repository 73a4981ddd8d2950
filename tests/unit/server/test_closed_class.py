"""A class whose targets no placement of the weights meets: what a client is told."""

from __future__ import annotations

import pytest

from scheduler.output import RefusalReason
from tests.http_harness import Harness, error_of, run


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_class_is_a_429_that_says_not_to_retry(stream: bool) -> None:
    """Streamed or not it is a status; no time to come back is named, since none would help."""

    async def body(h: Harness) -> None:
        h.engine.script.refuses = RefusalReason.CLASS_CLOSED
        response = await h.chat(stream=stream, service_tier="priority")
        assert h.engine.groups[0].slo.requested == "realtime"
        error = error_of(response, 429)
        assert (error["type"], error["code"]) == ("rate_limit_error", "slo_infeasible")
        assert error["message"] == "refused as scripted: slo_infeasible"
        assert response.headers["x-should-retry"] == "false"
        assert not {"retry-after", "retry-after-ms"} & set(response.headers)
        assert h.outcomes() == {"offered": 1, "refused": 1}

    run(body)


@pytest.mark.parametrize("is_best_effort", [True, False])
def test_a_class_served_late_says_so_in_a_header(is_best_effort: bool) -> None:
    async def body(h: Harness) -> None:
        h.engine.script.is_best_effort = is_best_effort
        response = await h.chat()
        assert response.status_code == 200
        assert response.headers.get("x-slo-best-effort") == ("1" if is_best_effort else None)
        assert response.headers["x-slo-granted"] == "standard"

    run(body)
