"""The HTML report: it stands alone, tells the JSON's numbers, and shows hostile text as text."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadgen.class_mix import parse_class_mix
from loadgen.config import BenchError
from loadgen.html_report import render_html, write_html
from loadgen.result import BenchResult, make_result
from loadgen.result_json import result_json
from loadgen.server_view import ClassView, ServerView, TotalView
from loadgen.targets import TargetBook
from tests.html_page import Page
from tests.sample_bench import sample_result

HOSTILE = '<script>alert("1")</script>&\'{'
OUTCOMES = {"met": 3, "late_ttft": 1, "refused": 2}
VIEW = ServerView(
    "Headrace",
    None,
    (ClassView("interactive", 6, 7, OUTCOMES, {**OUTCOMES, "met": 4}, 0, 1, 0.25, 0.001, 0.2, (f"why {HOSTILE}",)),),
    (TotalView("output tokens", 1234, 1240),),
    ("a note",),
)


def _find(body: Any, way: list[str | int]) -> Any:
    for step in way:
        body = body.get(step) if isinstance(body, dict) else body[step]
    return body


def _texts(value: float | None) -> set[str]:
    """How a number may stand in a table: a count, a share, a rate, or milliseconds."""
    if value is None:
        return {"–"}
    if isinstance(value, int):
        return {f"{value:,}"}
    ms = f"{value * 1e3:,.0f}" if value >= 0.1 else f"{value * 1e3:.1f}"
    return {f"{value:.1%}", f"{value:,.2f}", ms}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("names", [("interactive", "batch"), ("only",), ("a.b", 'c"d', "e>f")])
def test_every_number_of_the_tables_is_the_jsons(seed: int, names: tuple[str, ...]) -> None:
    result = dataclasses.replace(sample_result(seed=seed, names=names), server_view=VIEW)
    body = json.loads(json.dumps(result_json(result)))
    page = Page(render_html(result))
    cells = page.with_attribute("data-json")
    for cell in cells:
        way = json.loads(cell.attributes["data-json"])
        assert cell.text.removeprefix("▲ ") in _texts(_find(body, way)), way
    shown = {tuple(json.loads(cell.attributes["data-json"])) for cell in cells}
    for name in names:
        for key in ("sent", "met", "late", "refused", "failed", "offered_attainment", "goodput_per_s"):
            assert ("classes", name, key) in shown
        assert {("classes", name, "ttft_s", "p99"), ("classes", name, "tpot_s", "p50")} <= shown
    assert (("overall", "sent") in shown) == (len(names) > 1)
    assert ("server_view", "classes", 0, "server_outcomes", "met") in shown
    plain = [td for td in page.all("td") if not {"data-json", "class"} & set(td.attributes)]
    numbers = [td for td in plain if any(char.isdigit() for char in td.text)]
    assert all(" to " in td.text for td in numbers), "a number that comes from nowhere"


def test_a_number_is_marked_where_it_is_above_the_target_of_its_class_and_nowhere_else() -> None:
    result = sample_result()
    body = result_json(result)
    page = Page(render_html(result))
    num_marked = 0
    for cell in page.with_attribute("data-json"):
        first, *way = json.loads(cell.attributes["data-json"])
        is_quantile = first == "classes" and len(way) == 3 and way[2] in ("p50", "p90", "p95", "p99", "max")
        target = body["classes"][way[0]]["targets"].get(way[1]) if is_quantile else None
        is_over = target is not None and body["classes"][way[0]][way[1]][way[2]] > target["max"]
        assert cell.text.startswith("▲") == is_over, way
        num_marked += is_over
    assert num_marked > 3


def test_the_page_needs_nothing_from_elsewhere() -> None:
    text = render_html(dataclasses.replace(sample_result(), server_view=VIEW))
    page = Page(text)
    assert page.declarations == ["doctype html"]
    loading = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}
    assert not any(loading & set(element.attributes) for element in page.elements)
    assert not {"script", "link", "iframe", "object", "img", "base", "form"} & {e.tag for e in page.elements}
    assert not any(name.startswith("on") for element in page.elements for name in element.attributes)
    ids = [element.attributes["id"] for element in page.with_attribute("id")]
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {f"#{name}" for name in ids}
    assert "@import" not in text and "default-src 'none'" in page.all("meta")[-1].attributes["content"]


def test_text_of_servers_and_users_is_shown_as_text() -> None:
    result = sample_result(names=(f"interactive{HOSTILE.replace(':', '')}", "batch"))
    result = dataclasses.replace(
        result,
        server=dataclasses.replace(result.server, model=HOSTILE),
        server_view=VIEW,
        errors=(dataclasses.replace(result.errors[0], example=HOSTILE, code=HOSTILE),),
        config=dataclasses.replace(result.config, url=f"http://{HOSTILE}", api_key="the secret key"),
    )
    text = render_html(result)
    page = Page(text)
    assert not page.all("script") and page.all("h1")[0].text == f"Load test of {HOSTILE}"
    assert sum(HOSTILE in li.text for li in page.all("li")) == 2
    assert "the secret key" not in text


def test_the_first_sentence_is_the_verdict() -> None:
    result = sample_result()
    body = result_json(result)
    verdict = next(p.text for p in Page(render_html(result)).all("p") if p.attributes.get("class") == "verdict")
    share = body["overall"]["offered_attainment"]
    missed = body["classes"]["interactive"]["offered_attainment"] < 0.9
    assert verdict.startswith(f"Of {body['overall']['sent']} requests at ")
    assert f"{share:.1%}".replace(".0%", "%") in verdict
    assert f"(objective 90% {'missed' if missed else 'reached'})" in verdict
    assert "batch" in verdict and "batch (" not in verdict


@pytest.mark.parametrize("kind", ["invalid", "interrupted", "unjudged", "empty", "closed"])
def test_every_state_of_a_run_has_its_words(kind: str) -> None:
    result, expected = _in_state(kind)
    page = Page(render_html(result))
    text = page.all("body")[0].text
    assert expected in text
    assert ("✗ invalid run" in text) == (kind in ("invalid", "empty"))


def _in_state(kind: str) -> tuple[BenchResult, str]:
    result = sample_result()
    if kind == "invalid":
        return dataclasses.replace(result, invalid_reasons=("too late",)), "Do not believe this run: too late."
    if kind == "interrupted":
        run = dataclasses.replace(result.run, interrupted=True)
        return dataclasses.replace(result, run=run), "Interrupted: of "
    if kind == "empty":
        return sample_result(0, warm_up_s=0.0, cool_down_s=0.0), "no request was sent"
    if kind == "closed":
        config = dataclasses.replace(result.config, rate=None, concurrency=7)
        return dataclasses.replace(result, config=config), "by 7 clients, each with one open"
    unjudged = make_result(result.config, parse_class_mix(result.config), result.server, TargetBook({}, {}), result.run)
    return unjudged, "met their latency targets; others have no known target"


def test_the_file_is_written_whole_or_said_not_to_be(tmp_path: Path) -> None:
    result = sample_result(20)
    write_html(result, str(tmp_path / "report.html"))
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_html(result)
    with pytest.raises(BenchError, match="cannot write the report"):
        write_html(result, str(tmp_path / "none" / "report.html"))
