"""Metrics texts, against the library that writes and reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from loadgen.exposition import ExpositionError, parse_exposition


def _registry(label: str, value: float) -> CollectorRegistry:
    registry = CollectorRegistry()
    counter = Counter("jobs", 'Of "all"\nkinds.', ("kind", "other"), registry=registry)
    counter.labels(label, "a,b}").inc(3)
    counter.labels("plain", "").inc()
    Gauge("level", "Now.", registry=registry).set(value)
    histogram = Histogram("took_seconds", "How long.", ("kind",), buckets=(0.1, 2.0), registry=registry)
    for seconds in (0.05, 1.0, 30.0):
        histogram.labels(label).observe(seconds)
    return registry


@settings(max_examples=60, deadline=None)
@given(label=st.text(max_size=12), value=st.floats(allow_nan=True))
def test_every_sample_is_read_as_the_library_reads_it(label: str, value: float) -> None:
    label = label.encode("utf-8", "replace").decode()  # a lone surrogate is no text
    text = generate_latest(_registry(label, value)).decode()
    theirs = [s for family in text_string_to_metric_families(text) for s in family.samples]
    ours = parse_exposition(text)
    assert [(s.name, dict(s.labels)) for s in ours] == [(s.name, s.labels) for s in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.value == other.value or (math.isnan(mine.value) and math.isnan(other.value))
    assert dict(next(s for s in ours if s.name == "jobs_total").labels) == {"kind": label, "other": "a,b}"}


def test_openmetrics_with_its_closing_line_and_exemplars_is_read() -> None:
    registry = CollectorRegistry()
    Counter("jobs", "All.", registry=registry).inc(2, exemplar={"trace": "abc"})
    samples = parse_exposition(openmetrics.generate_latest(registry).decode())
    assert next(s.value for s in samples if s.name == "jobs_total") == 2.0


def test_a_timestamp_is_no_value() -> None:
    (sample,) = parse_exposition('# TYPE a gauge\na { x = "1" , y="2", } 4.5 1395066363000\r\n')
    assert (sample.name, dict(sample.labels), sample.value) == ("a", {"x": "1", "y": "2"}, 4.5)


@pytest.mark.parametrize("text", ["<html>", "a", "a{", 'a{x="1} 2', "a{x=1} 2", "a b", '{"json": 1}'])
def test_what_is_no_sample_is_told_with_its_line(text: str) -> None:
    with pytest.raises(ExpositionError) as caught:
        parse_exposition(f"ok 1\n{text}\n")
    assert repr(text)[1:-1][:10] in str(caught.value)
