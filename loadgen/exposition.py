"""The text format in which servers show their metrics to Prometheus: 0.0.4, and OpenMetrics as far as it is alike.

Source: Prometheus, "Exposition formats"; OpenMetrics 1.0 for exemplars and the closing `# EOF`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_SHOWN_CHARS = 80


class ExpositionError(Exception):
    """The text is not in the format; the message holds the line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One series at the moment of the scrape."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_exposition(text: str) -> tuple[Sample, ...]:
    """The samples in their order; comments, timestamps and exemplars are left out.

    Raises:
        ExpositionError: a line is no sample.
    """
    lines = (line.strip() for line in text.split("\n"))
    return tuple(_parse_sample(line) for line in lines if line and not line.startswith("#"))


def _parse_sample(line: str) -> Sample:
    name = _NAME.match(line)
    if name is None:
        raise ExpositionError(f"no name of a metric: {line[:_SHOWN_CHARS]!r}")
    labels, rest = _parse_labels(line, name.end())
    words = rest.split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        raise ExpositionError(f"no value: {line[:_SHOWN_CHARS]!r}") from None
    return Sample(name.group(), labels, value)


def _parse_labels(line: str, start: int) -> tuple[dict[str, str], str]:
    """The labels, and what stands behind them."""
    rest = line[start:].lstrip()
    if not rest.startswith("{"):
        return {}, rest
    position = len(line) - len(rest) + 1
    labels: dict[str, str] = {}
    while line[position : position + 1] not in ("}", ""):
        label = _LABEL.match(line, position)
        if label is None:
            break
        labels[label[1]] = _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[0]), label[2])
        position = label.end()
    if line[position : position + 1] != "}":
        raise ExpositionError(f"labels that do not end: {line[:_SHOWN_CHARS]!r}")
    return labels, line[position + 1 :]
