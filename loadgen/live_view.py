"""A load test as it goes, on a terminal: per class what was sent, is open, and has met its targets; and our own lag."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.metrics import LATE, Outcome
from loadgen.trace import RequestTrace
from loadgen.workload import PlannedRequest

_REFRESHES_PER_S = 2.0
_TITLES = ("  sent", "  open", "   met", "  late", "refused", "failed", "goodput/s")
_MAX_NAME_CELLS = 24
_BAR_CELLS = 20
_FULL, _EMPTY = "█", "·"
_GOOD = 0.99
_FAIR = 0.9
_NUM_LAGS = 200
"""Requests over which the lag is shown."""


@dataclasses.dataclass(slots=True)
class ClassCounter:
    """One class so far. Requests of warm-up and cool-down count too."""

    num_sent: int = 0
    outcomes: collections.Counter[Outcome] = dataclasses.field(default_factory=collections.Counter)
    """Of ended requests."""

    @property
    def num_open(self) -> int:
        return self.num_sent - self.outcomes.total()

    @property
    def attainment(self) -> float | None:
        """Of ended requests, as in the report: met / (all - cancelled); None: there is none, or some are unjudged."""
        num_judged = self.outcomes.total() - self.outcomes[Outcome.CANCELLED]
        return None if self.outcomes[Outcome.UNJUDGED] or not num_judged else self.outcomes[Outcome.MET] / num_judged


class LiveView:
    """Draws itself while its block runs; where it is not wanted, or the console is no terminal, it draws nothing."""

    def __init__(
        self,
        classes: Sequence[str],
        console: Console,
        clock: Callable[[], float],
        *,
        num_planned: int | None = None,
        wanted: bool = True,
    ) -> None:
        """
        Args:
            classes: shown from the start, in this order.
            clock: seconds, that of the traces.
            num_planned: requests that the run will send; None: not known.
        """
        self._counters = {name: ClassCounter() for name in classes}
        self._clock = clock
        self._started_s = clock()
        self._num_planned = num_planned
        self._lags_s: collections.deque[float] = collections.deque(maxlen=_NUM_LAGS)
        self._max_lag_s = 0.0
        self._live: Live | None = None
        if wanted and console.is_terminal:
            self._live = Live(
                console=console, get_renderable=self.render, refresh_per_second=_REFRESHES_PER_S, transient=True
            )

    @property
    def is_shown(self) -> bool:
        return self._live is not None

    def __enter__(self) -> LiveView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, started_s: float) -> None:
        """The time 0 of the schedule."""
        self._started_s = started_s

    def sent(self, planned: PlannedRequest, lag_s: float) -> None:
        """A request leaves, `lag_s` after it was due."""
        self._counters.setdefault(planned.slo_class, ClassCounter()).num_sent += 1
        self._lags_s.append(lag_s)
        self._max_lag_s = max(self._max_lag_s, lag_s)

    def finished(self, trace: RequestTrace, outcome: Outcome) -> None:
        """A request is over and judged."""
        self._counters.setdefault(trace.planned.slo_class, ClassCounter()).outcomes[outcome] += 1

    def counter(self, name: str) -> ClassCounter:
        """Raises KeyError: there is no such class."""
        return self._counters[name]

    def render(self) -> Text:
        """A line a class and one below them, as of now. One plain text: a table takes ten times as long to draw."""
        elapsed_s = max(self._clock() - self._started_s, 0.0)
        counters = tuple(self._counters.items())
        width = max([len("class"), *(min(len(name), _MAX_NAME_CELLS) for name, _ in counters)])
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{'class':<{width}}  {_row(_TITLES)}  met / ended\n", "bold")
        for name, counter in counters:
            text.append(f"{_short(name):<{width}}  {_row(_cells(counter, elapsed_s))}  ")
            text.append_text(_bar(counter.attainment)).append("\n")
        return text.append(self._footer(elapsed_s), "dim")

    def _footer(self, elapsed_s: float) -> str:
        num_sent = sum(counter.num_sent for counter in self._counters.values())
        of = "" if self._num_planned is None else f" of {self._num_planned}"
        lags_s = sorted(self._lags_s)
        recent = f"{lags_s[int(0.99 * (len(lags_s) - 1))] * 1e3:.1f}" if lags_s else "-"
        return (
            f"{elapsed_s:.0f} s, {num_sent}{of} sent; send lag p99 of the last {len(lags_s)} {recent} ms, "
            f"max {self._max_lag_s * 1e3:.1f} ms; Ctrl-C ends the run and reports"
        )


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CELLS else f"{name[: _MAX_NAME_CELLS - 1]}…"


def _row(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>{len(title)}}" for cell, title in zip(cells, _TITLES, strict=True))


def _cells(counter: ClassCounter, elapsed_s: float) -> list[str]:
    outcomes = counter.outcomes
    goodput = f"{outcomes[Outcome.MET] / elapsed_s:.2f}" if elapsed_s > 0.0 else "-"
    num_late = sum(outcomes[outcome] for outcome in LATE)
    num_refused = outcomes[Outcome.REFUSED] + outcomes[Outcome.EXPIRED]
    num_failed = outcomes[Outcome.FAILED] + outcomes[Outcome.TIMED_OUT]
    counts = (counter.num_sent, counter.num_open, outcomes[Outcome.MET], num_late, num_refused, num_failed)
    return [*(str(count) for count in counts), goodput]


def _bar(attainment: float | None) -> Text:
    """With its number, so that colour tells nothing alone. It is full where all were met, and only then."""
    if attainment is None:
        return Text(f"{_EMPTY * _BAR_CELLS}      -", style="dim")
    style = "green" if attainment >= _GOOD else "yellow" if attainment >= _FAIR else "red"
    num_full = int(attainment * _BAR_CELLS)
    return Text.assemble(
        (_FULL * num_full, style), (_EMPTY * (_BAR_CELLS - num_full), "dim"), f" {attainment * 100.0:5.1f}%"
    )
