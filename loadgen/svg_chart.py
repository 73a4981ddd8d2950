"""A frame for hand-made SVG charts that stand inside an HTML page: scales, grid, ticks, legend.

Colours are CSS classes of the page (`loadgen.html_style`), so that one chart is readable in the dark and in the light.
Lengths are in the chart's own units, which a page of 440 pixels or more shows as pixels.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

WIDTH = 440.0
_LEFT, _RIGHT = 54.0, 14.0
_LEGEND_LINE, _TOP, _BOTTOM = 18.0, 18.0, 40.0
_NUM_TICKS = 5
_KEY_WIDTH = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One scale."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False
    """Equal ratios are equally far apart."""

    @classmethod
    def of_decades(cls, label: str, low: float, high: float, shown: float = 1.0) -> Axis:
        """From a power of ten at or below `low`, which is above 0, to one at or above `high`; ticks show values times
        `shown`, a power of ten."""
        first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
        powers = range(first, max(last, first + 1) + 1)
        ticks = tuple((10.0**power, _tick_text(10.0**power * shown, 10.0**power * shown)) for power in powers)
        return cls(label, ticks[0][0], ticks[-1][0], ticks, is_log=True)

    @classmethod
    def from_zero(cls, label: str, high: float, shown: float = 1.0) -> Axis:
        """From 0 to at least `high`, with round ticks, which show values times `shown`, a power of ten."""
        step = round_step(max(high, 1e-9) / _NUM_TICKS)
        num = max(math.ceil(high / step - 1e-9), 1)
        values = [step * i for i in range(num + 1)]
        ticks = tuple((value, _tick_text(value * shown, step * shown)) for value in values)
        return cls(label, 0.0, values[-1], ticks)

    @classmethod
    def up_to(cls, label: str, high: float) -> Axis:
        """From 0 to `high` itself, with round ticks below it."""
        step = round_step(max(high, 1e-9) / _NUM_TICKS)
        values = [step * i for i in range(math.floor(high / step + 1e-9) + 1)]
        return cls(label, 0.0, high, tuple((value, _tick_text(value, step)) for value in values))

    def share(self, value: float) -> float:
        """Where a value lies, from 0 to 1; what is beyond an end lies at it."""
        if self.is_log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One line of a legend: a sample, drawn in a box of 30 x 12, and what it means."""

    sample: str
    text: str


class Chart:
    """One chart; shapes are added back to front."""

    def __init__(self, x: Axis, y: Axis, keys: Sequence[Key], plot_height: float = 170.0) -> None:
        self._x = x
        self._y = y
        self._keys = tuple(keys)
        self.top = _TOP + _LEGEND_LINE * len(self._keys)
        self._plot_height = plot_height
        self._shapes: list[str] = []

    @property
    def bottom(self) -> float:
        return self.top + self._plot_height

    def x(self, value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * self._x.share(value)

    def y(self, value: float) -> float:
        return self.bottom - self._plot_height * self._y.share(value)

    def add(self, shape: str) -> None:
        """SVG text in the chart's units; what a user wrote in it is escaped already."""
        self._shapes.append(shape)

    def render(self, description: str) -> str:
        """The `<svg>` element; `description` is read out to those who do not see it."""
        height = self.bottom + _BOTTOM
        parts = [
            f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
            f'aria-label="{html.escape(description)}">',
            *self._grid(),
            *self._shapes,
            *self._legend(),
            "</svg>",
        ]
        return "\n".join(parts)

    def _grid(self) -> list[str]:
        left, right = self.x(self._x.low), self.x(self._x.high)
        parts = []
        for value, text in self._y.ticks:
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        for value, text in self._x.ticks:
            x = self.x(value)
            parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom}" y2="{self.bottom + 4}"/>')
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{self.bottom + 17:.1f}" text-anchor="middle">{text}</text>'
            )
        parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{self.bottom}" y2="{self.bottom}"/>')
        parts.append(
            f'<text class="label" x="{(left + right) / 2:.1f}" y="{self.bottom + 34:.1f}" text-anchor="middle">'
            f"{html.escape(self._x.label)}</text>"
        )
        if self._y.label:
            parts.append(
                f'<text class="label" transform="translate(10 {(self.top + self.bottom) / 2:.1f}) rotate(-90)" '
                f'text-anchor="middle">{html.escape(self._y.label)}</text>'
            )
        return parts

    def _legend(self) -> list[str]:
        return [legend_line(key, _LEFT, 2.0 + i * _LEGEND_LINE) for i, key in enumerate(self._keys)]


def legend_line(key: Key, x: float, y: float) -> str:
    """A sample and its text, with its upper left corner there."""
    return (
        f'<g transform="translate({x:.1f} {y:.1f})">{key.sample}'
        f'<text class="key" x="{_KEY_WIDTH + 6:.0f}" y="11">{html.escape(key.text)}</text></g>'
    )


def path(points: Sequence[tuple[float, float]]) -> str:
    """The `d` of a line through some points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def round_step(at_least: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is at least so much."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= at_least * (1.0 - 1e-9))


def _tick_text(value: float, step: float) -> str:
    num_decimals = max(-math.floor(math.log10(step) + 1e-9), 0)
    return f"{value:,.{num_decimals}f}"
