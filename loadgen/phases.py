"""Which requests of a run count: those due in its steady window, between warm-up and cool-down.

All are sent, and the answers of all are waited for: load before and after the window is as real as within it. A
request belongs to the phase in which it was due, however long its answer takes.
"""

from __future__ import annotations

import dataclasses
import enum


class Phase(enum.Enum):
    """Where a request's intended send time lies."""

    WARM_UP = "warm_up"
    STEADY = "steady"
    COOL_DOWN = "cool_down"


@dataclasses.dataclass(frozen=True, slots=True)
class SteadyWindow:
    """From `start_s` on, up to but without `end_s`, in seconds from the start of the schedule."""

    start_s: float
    end_s: float | None
    """None: it ends with the last request."""
    length_s: float | None
    """What rates are taken over; None: there was nothing to send, or nothing is left of it."""

    def phase_of(self, offset_s: float) -> Phase:
        """Of a request that is due then."""
        if offset_s < self.start_s:
            return Phase.WARM_UP
        return Phase.STEADY if self.end_s is None or offset_s < self.end_s else Phase.COOL_DOWN


def steady_window(warm_up_s: float, cool_down_s: float, arrival_window_s: float | None) -> SteadyWindow:
    """The window of a run whose requests were due within `arrival_window_s`; None: nothing was sent."""
    if arrival_window_s is None:
        return SteadyWindow(warm_up_s, None, None)
    length_s = arrival_window_s - warm_up_s - cool_down_s
    end_s = arrival_window_s - cool_down_s if cool_down_s > 0.0 else None
    return SteadyWindow(warm_up_s, end_s, length_s if length_s > 0.0 else None)
