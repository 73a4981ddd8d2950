"""Requests made from /openapi.json, valid and invalid ones: no 5xx, and answers as the document says."""

from __future__ import annotations

import hypothesis
import schemathesis
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.http_harness import make_harness

HARNESS = make_harness(max_model_len=4096)
schema = schemathesis.openapi.from_asgi("/openapi.json", HARNESS.app)
schema.config.generation.update(modes=list(schemathesis.GenerationMode))
CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    response_schema_conformance,
]


@schema.parametrize()
@hypothesis.settings(max_examples=15, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_no_request_makes_a_server_error(case: schemathesis.Case) -> None:
    response = case.call()
    case.validate_response(response, checks=CHECKS)
