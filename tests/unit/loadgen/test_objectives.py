"""What a search asks: objectives, judged classes and frontiers as they are written."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.capacity_config import CapacityConfig
from loadgen.config import BenchError
from loadgen.objectives import Question, parse_question

SENT = ("interactive", "batch")
SERVED = {"interactive": 0.99, "batch": 0.9, "other": 0.5}


def _question(**options: Any) -> Question:
    return parse_question(CapacityConfig(**options))


def test_objectives_come_from_the_options_else_from_the_server() -> None:
    assert _question().resolve(SENT, SERVED) == {"interactive": 0.99, "batch": 0.9}
    given = _question(objective=("batch=80%", "interactive = 0.95"))
    assert given.resolve(SENT, SERVED) == pytest.approx({"interactive": 0.95, "batch": 0.8})
    assert _question(judge=("interactive",)).resolve(SENT, SERVED) == {"interactive": 0.99}


def test_a_class_without_an_objective_is_not_judged_unless_it_is_named_or_none_has_one() -> None:
    assert _question(objective=("batch=0.8",)).resolve(SENT, {}) == {"batch": 0.8}
    with pytest.raises(BenchError, match=r"'interactive' has no objective.*--objective interactive=0.99"):
        _question(judge=("interactive", "batch"), objective=("batch=0.8",)).resolve(SENT, {})
    with pytest.raises(BenchError, match="'interactive' has no objective"):
        _question().resolve(SENT, {})


@pytest.mark.parametrize(
    ("text", "judged", "objectives"),
    [
        ("batch:interactive>=0.99", ("interactive",), {"interactive": 0.99}),
        ("batch:interactive", ("interactive",), {"interactive": 0.99}),
        ("batch: interactive >= 95% , batch>=0.5", ("interactive", "batch"), {"interactive": 0.95, "batch": 0.5}),
    ],
)
def test_a_frontier_varies_one_class_and_judges_others(
    text: str, judged: tuple[str, ...], objectives: dict[str, float]
) -> None:
    question = _question(frontier=text)
    assert (question.varied, question.judged) == ("batch", judged)
    assert question.resolve(SENT, SERVED) == pytest.approx(objectives)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": ("batch",)}, "write NAME=SHARE"),
        ({"objective": ("=0.9",)}, "write NAME=SHARE"),
        ({"objective": ("batch=1",)}, "it must be above 0 and below 1"),
        ({"objective": ("batch=99",)}, "it must be above 0 and below 1"),
        ({"objective": ("batch=x",)}, "it must be above 0 and below 1"),
        ({"objective": ("batch=0.5", "batch=0.6")}, "gives class 'batch' twice"),
        ({"frontier": "batch"}, "write VARIED:JUDGED>=SHARE"),
        ({"frontier": ":interactive"}, "write VARIED:JUDGED>=SHARE"),
        ({"frontier": "batch:interactive>0.99"}, "is no JUDGED>=SHARE"),
        ({"frontier": "batch:interactive<=0.99"}, "is no JUDGED>=SHARE"),
        ({"frontier": "batch:interactive>=2"}, "above 0 and below 1"),
        ({"frontier": "batch:a>=0.9,a>=0.8"}, "names 'a' twice"),
        ({"frontier": "batch:a>=0.9", "objective": ("a=0.8",)}, "leave one out"),
    ],
)
def test_what_cannot_be_read_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        _question(**options)


@pytest.mark.parametrize(
    "options", [{"judge": ("x",)}, {"objective": ("x=0.9",)}, {"vary": "x"}, {"frontier": "x:batch"}]
)
def test_a_class_that_is_not_sent_is_told(options: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="class 'x' is not sent: the load's classes are interactive, batch"):
        _question(**options).resolve(SENT, SERVED)


def test_a_frontier_says_what_is_varied_and_judged() -> None:
    with pytest.raises(ValueError, match="leave out vary and judge"):
        CapacityConfig(frontier="a:b", vary="a")
    with pytest.raises(ValueError, match=r"resolution is 0\.0, it must be at least 0.001"):
        CapacityConfig(resolution=0.0)
