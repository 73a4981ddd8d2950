"""Which class and targets a request gets: the precedence of body, headers and tier, and what is refused."""

from __future__ import annotations

import pytest

from scheduler.slo import SLO, SLOClasses
from server.slo_request import MAX_TARGET_MS, InvalidSLO, SLOBody, resolve_slo

CLASSES = SLOClasses()


def _resolve(headers: dict[str, str] | None = None, tier: str | None = None, body: SLOBody | None = None) -> SLO:
    return resolve_slo(CLASSES, headers or {}, tier, body)


def test_a_request_that_says_nothing_gets_the_default_class_and_its_targets() -> None:
    assert _resolve() == SLO("standard", "standard")
    assert resolve_slo(SLOClasses(default="batch"), {}, None, None).requested == "batch"


@pytest.mark.parametrize(
    ("tier", "name"),
    [
        ("priority", "realtime"),
        ("fast", "interactive"),
        ("default", "standard"),
        ("auto", "standard"),
        ("flex", "batch"),
        ("scale", "standard"),
    ],
)
def test_a_service_tier_asks_for_its_class(tier: str, name: str) -> None:
    assert _resolve(tier=tier).requested == name


def test_scale_means_the_default_class_whichever_that_is() -> None:
    assert resolve_slo(SLOClasses(default="batch"), {}, "scale", None).requested == "batch"


def test_header_wins_over_tier_and_body_over_header() -> None:
    headers = {"x-slo-class": "interactive"}
    assert _resolve(headers, "flex").requested == "interactive"
    assert _resolve(headers, "flex", SLOBody(slo_class="realtime")).requested == "realtime"


def test_precedence_is_value_by_value() -> None:
    headers = {"x-slo-class": "batch", "x-slo-ttft-ms": "900", "x-slo-tpot-ms": "45.5", "x-slo-degrade": "1"}
    slo = _resolve(headers, "priority", SLOBody(tpot_ms=20, e2e_deadline_ms=5000))
    assert slo == SLO("batch", "batch", ttft_s=0.9, tpot_s=0.02, e2e_deadline_s=5.0, may_degrade=True)


def test_a_body_can_take_back_the_headers_consent() -> None:
    assert not _resolve({"x-slo-degrade": "1"}, body=SLOBody(degrade=False)).may_degrade


def test_what_is_overridden_is_not_looked_at() -> None:
    assert _resolve({"x-slo-class": "batch", "x-slo-ttft-ms": "junk"}, "no-such-tier", SLOBody(ttft_ms=1.0)) == SLO(
        "batch", "batch", ttft_s=0.001
    )


@pytest.mark.parametrize("text", ["250", " 250\t", "250.", "+250.0", "2.5e2", "25E+1"])
def test_target_headers_take_plain_numbers(text: str) -> None:
    assert _resolve({"x-slo-ttft-ms": text}).ttft_s == 0.25


@pytest.mark.parametrize(("text", "consents"), [("1", True), ("true", True), ("0", False), ("FALSE", False)])
def test_degrade_header(text: str, consents: bool) -> None:
    assert _resolve({"x-slo-degrade": text}).may_degrade is consents


@pytest.mark.parametrize(
    ("headers", "tier", "body", "param", "tells"),
    [
        ({"x-slo-class": "gold"}, None, None, "x-slo-class", ["'gold'", "realtime, interactive, standard, batch"]),
        ({"x-slo-class": ""}, None, None, "x-slo-class", ["realtime"]),
        ({}, "gold", None, "service_tier", ["'gold'", "priority", "flex", "scale"]),
        ({}, None, SLOBody(slo_class="gold"), "slo.class", ["'gold'", "batch"]),
        ({"x-slo-ttft-ms": "soon"}, None, None, "x-slo-ttft-ms", ["'soon'", "milliseconds"]),
        ({"x-slo-ttft-ms": "nan"}, None, None, "x-slo-ttft-ms", ["nan", "milliseconds"]),
        ({"x-slo-tpot-ms": "-1"}, None, None, "x-slo-tpot-ms", ["-1", "at least 0.001"]),
        ({"x-slo-tpot-ms": "inf"}, None, None, "x-slo-tpot-ms", ["inf", "milliseconds"]),
        ({"x-slo-tpot-ms": "1e300"}, None, None, "x-slo-tpot-ms", ["1e+300", f"{MAX_TARGET_MS:.0f}"]),
        ({"x-slo-ttft-ms": "1_000"}, None, None, "x-slo-ttft-ms", ["'1_000'", "milliseconds"]),
        ({"x-slo-ttft-ms": "٣"}, None, None, "x-slo-ttft-ms", ["milliseconds"]),
        ({"x-slo-ttft-ms": ""}, None, None, "x-slo-ttft-ms", ["''", "milliseconds"]),
        ({"x-slo-degrade": "maybe"}, None, None, "x-slo-degrade", ["'maybe'", "1, 0, true or false"]),
        ({}, None, SLOBody(ttft_ms=0.0), "slo.ttft_ms", ["0.0", "at least 0.001"]),
        ({}, None, SLOBody(tpot_ms=5e-324), "slo.tpot_ms", ["5e-324", "at least 0.001"]),
        ({}, None, SLOBody(e2e_deadline_ms=MAX_TARGET_MS + 1), "slo.e2e_deadline_ms", ["at most"]),
    ],
)
def test_a_bad_value_names_its_parameter_and_what_is_allowed(
    headers: dict[str, str], tier: str | None, body: SLOBody | None, param: str, tells: list[str]
) -> None:
    with pytest.raises(InvalidSLO) as raised:
        _resolve(headers, tier, body)
    assert raised.value.param == param
    for text in tells:
        assert text in raised.value.message


def test_the_slo_object_is_read_from_json() -> None:
    body = {"class": "batch", "ttft_ms": 100, "tpot_ms": None, "e2e_deadline_ms": 2.5, "degrade": True}
    assert SLOBody.parse(body) == SLOBody("batch", 100.0, None, 2.5, True)
    assert SLOBody.parse({}) == SLOBody()


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("batch", "slo"),
        ([], "slo"),
        ({"klass": "batch"}, "slo.klass"),
        ({"class": 3}, "slo.class"),
        ({"ttft_ms": "100"}, "slo.ttft_ms"),
        ({"tpot_ms": True}, "slo.tpot_ms"),
        ({"degrade": 1}, "slo.degrade"),
    ],
)
def test_a_malformed_slo_object_is_refused(value: object, param: str) -> None:
    with pytest.raises(InvalidSLO) as raised:
        SLOBody.parse(value)
    assert raised.value.param == param


def test_a_number_too_large_for_a_float_is_out_of_bounds() -> None:
    with pytest.raises(InvalidSLO, match="at most"):
        _resolve(body=SLOBody.parse({"ttft_ms": 10**400}))


def test_what_a_client_sent_is_sent_back_shortened() -> None:
    with pytest.raises(InvalidSLO) as raised:
        _resolve({"x-slo-class": "x" * 10_000})
    assert len(raised.value.message) < 300
