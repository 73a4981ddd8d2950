"""A function of a count that is straight between knots and never falls."""

from __future__ import annotations

import bisect
import dataclasses
import math


@dataclasses.dataclass(frozen=True, slots=True)
class Ramp:
    """Seconds by a count: `start_s` at 0, straight between `knots`, the last slope also beyond the last knot.

    Raises:
        ValueError: it falls somewhere, or its knots do not ascend from above 0.
    """

    start_s: float
    knots: tuple[float, ...]
    slopes_s: tuple[float, ...]
    """Seconds per unit in the stretch that ends at each knot."""

    def __post_init__(self) -> None:
        if not self.knots or len(self.knots) != len(self.slopes_s):
            raise ValueError(f"a ramp of {len(self.knots)} knots and {len(self.slopes_s)} slopes: one slope each")
        if self.knots[0] <= 0.0 or any(not low < high for low, high in zip(self.knots, self.knots[1:], strict=False)):
            raise ValueError(f"the knots {self.knots} do not ascend from above 0")
        for value in (self.start_s, *self.slopes_s):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"a ramp holds {value}: times that only grow have no negative or endless slope")

    def __call__(self, x: float) -> float:
        total_s, start = self.start_s, 0.0
        last = self._stretch(x)
        for index in range(last):
            knot = self.knots[index]
            total_s += self.slopes_s[index] * (knot - start)
            start = knot
        return total_s + self.slopes_s[last] * (x - start)

    def slope_from(self, x: float) -> float:
        """Seconds per unit just above `x`."""
        index = min(bisect.bisect_right(self.knots, x), len(self.knots) - 1)
        return self.slopes_s[index]

    def _stretch(self, x: float) -> int:
        return min(bisect.bisect_left(self.knots, x), len(self.knots) - 1)
