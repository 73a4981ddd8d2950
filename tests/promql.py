"""What a PromQL expression reads: the series, and the labels that it asks of them. By the package promql-parser."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True, slots=True)
class Selector:
    """One vector selector of an expression."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    """(label, operator, value)."""
    grouped_by: frozenset[str]
    """Labels of the aggregations around it."""
    functions: tuple[str, ...]
    """Calls around it, the innermost last."""
    window_s: float | None
    """Of a range selector."""

    @property
    def is_recorded(self) -> bool:
        return ":" in self.name

    @property
    def labels(self) -> frozenset[str]:
        """All that it asks for."""
        return self.grouped_by | {label for label, _, _ in self.matchers}


def read_selectors(expr: str) -> list[Selector]:
    """Raises ValueError where the expression is none; skips the test without the parser."""
    parser = pytest.importorskip("promql_parser", reason="pip install promql-parser")
    return list(_walk(parser, parser.parse(expr), frozenset(), (), None))


def _walk(
    parser: Any, node: Any, grouped_by: frozenset[str], functions: tuple[str, ...], window_s: float | None
) -> Iterator[Selector]:
    match node:
        case parser.VectorSelector():
            matchers = tuple((m.name, _operator(m.op), m.value) for m in node.matchers.matchers)
            yield Selector(node.name, matchers, grouped_by, functions, window_s)
        case parser.MatrixSelector():
            yield from _walk(parser, node.vector_selector, grouped_by, functions, node.range.total_seconds())
        case parser.Call():
            for argument in node.args:
                yield from _walk(parser, argument, grouped_by, (*functions, node.func.name), window_s)
        case parser.AggregateExpr():
            labels = frozenset(node.modifier.labels) if node.modifier is not None else frozenset()
            yield from _walk(parser, node.expr, grouped_by | labels, functions, window_s)
        case parser.BinaryExpr():
            for side in (node.lhs, node.rhs):
                yield from _walk(parser, side, grouped_by, functions, window_s)
        case parser.ParenExpr() | parser.UnaryExpr() | parser.SubqueryExpr():
            yield from _walk(parser, node.expr, grouped_by, functions, window_s)
        case parser.NumberLiteral() | parser.StringLiteral():
            return
        case _:
            raise ValueError(f"an expression of an unknown kind: {type(node).__name__}")


def _operator(op: Any) -> str:
    return str(op).rpartition(".")[2]
