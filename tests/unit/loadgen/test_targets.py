"""Where a request's targets come from, value by value."""

from __future__ import annotations

import pytest

from loadgen.config import BenchConfig, BenchError
from loadgen.server_probe import ServerInfo, _with_classes
from loadgen.targets import ClassTargets, TargetBook, Targets, ToldTargets, parse_overrides, read_told_targets

SERVED = {"chat": ClassTargets(1.0, 0.2, 0.05, 0.5)}
TOLD = ToldTargets("chat", Targets(ttft_s=1.1, tpot_s=0.06))


def test_the_served_class_counts_uncached_tokens() -> None:
    assert TargetBook({}, SERVED).targets_for("chat", 500, None) == Targets(1.1, 0.05, 0.5)


def test_what_a_response_tells_wins_over_the_class_and_an_override_over_both() -> None:
    assert TargetBook({}, SERVED).targets_for("chat", 0, TOLD) == Targets(1.1, 0.06, 0.5)
    book = TargetBook({"chat": Targets(tpot_s=0.01, e2e_s=9.0)}, SERVED)
    assert book.targets_for("chat", 0, TOLD) == Targets(1.1, 0.01, 0.5, 9.0)


def test_a_degraded_request_is_judged_by_the_class_asked_for() -> None:
    told = ToldTargets("bulk", Targets(ttft_s=60.0, tpot_s=1.0, max_stall_s=9.0))
    assert TargetBook({}, SERVED).targets_for("chat", 0, told) == Targets(1.0, 0.05, 0.5)


def test_an_unknown_class_has_no_targets() -> None:
    targets = TargetBook({}, SERVED).targets_for("other", 0, None)
    assert not targets.judges
    assert Targets(e2e_s=1.0).judges


def test_the_tightest_ttft_is_over_the_classes_that_are_sent() -> None:
    book = TargetBook({"b": Targets(ttft_s=0.3)}, SERVED)
    assert book.tightest_ttft_s(("chat", "b", "c")) == 0.3
    assert book.tightest_ttft_s(("chat",)) == 1.0
    assert book.tightest_ttft_s(("c",)) is None


def test_headers_are_read_and_nonsense_in_them_is_ignored() -> None:
    headers = {"x-slo-class": "a", "x-slo-granted": "b", "x-slo-ttft-target-ms": "1250", "x-slo-tpot-target-ms": "x"}
    assert read_told_targets(headers) == ToldTargets("b", Targets(ttft_s=1.25))
    assert read_told_targets({"x-slo-max-stall-ms": "-1", "x-slo-ttft-target-ms": "inf"}) == ToldTargets(
        None, Targets()
    )


def test_overrides_are_read_in_milliseconds() -> None:
    overrides = parse_overrides(("chat:ttft_ms=1000,tpot_ms=50", "bulk:max_stall_ms=2.5,e2e_ms=9000"), ("chat", "bulk"))
    assert overrides == {
        "chat": Targets(ttft_s=1.0, tpot_s=0.05),
        "bulk": Targets(max_stall_s=0.0025, e2e_s=9.0),
    }


@pytest.mark.parametrize(
    ("options", "tells"),
    [
        (("gold:ttft_ms=1",), "'gold' is not sent: the run's classes are chat"),
        (("chat:ttft=1",), "NAME:KEY=MILLISECONDS"),
        (("chat",), "NAME:KEY=MILLISECONDS"),
        (("chat:ttft_ms=0",), "ttft_ms is '0', it must be a number of milliseconds above 0"),
        (("chat:ttft_ms=x",), "ttft_ms is 'x'"),
        (("chat:ttft_ms=1", "chat:tpot_ms=1"), "'chat' twice"),
    ],
)
def test_an_override_that_cannot_be_read_is_refused(options: tuple[str, ...], tells: str) -> None:
    with pytest.raises(BenchError, match=tells):
        parse_overrides(options, ("chat",))


def test_a_report_of_classes_is_read_as_far_as_it_is_in_form() -> None:
    body = {
        "default_class": "a",
        "classes": [
            {"name": "a", "service_tiers": ["fast", "x"], "targets": {"ttft_base_ms": 400, "tpot_ms": "fast"}},
            {"name": "b", "targets": None},
            {"no": "name"},
            "junk",
        ],
    }
    info = _with_classes(ServerInfo("m"), body)
    assert info.default_class == "a"
    assert info.classes == {
        "a": ClassTargets(0.4, 0.0, None, None),
        "b": ClassTargets(None, 0.0, None, None),
    }
    assert (info.service_tier("a"), info.service_tier("b")) == ("fast", "b")
    junks: list[object] = [None, [], {"classes": 3}, "text"]
    for junk in junks:
        assert _with_classes(ServerInfo("m"), junk) == ServerInfo("m")


def test_a_key_is_not_shown_with_the_config() -> None:
    assert "secret" not in repr(BenchConfig("http://x", api_key="secret"))
