"""Times that only grow: non-negative least squares over features that never fall.

A weighted sum of features that grow with the load, with weights that are not negative, grows with the load: the fit is
monotone by construction, whatever the noise of the measurements. Errors count relative to the time measured, since a
step of one token and one of 512 must both be predicted.

Source: C. L. Lawson and R. J. Hanson, Solving Least Squares Problems (1974), chapter 23, for NNLS.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from offload.step_load import StepLoad

Floats = npt.NDArray[np.float64]

_TOLERANCE = 1e-10


def nnls(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 for which `matrix` x is nearest to `target`.

    Args:
        matrix: [M, N].
        target: [M].

    Returns:
        [N].

    Source: Lawson and Hanson (1974), algorithm NNLS (23.10).
    """
    num_columns = matrix.shape[1]
    # Columns of very different size (a constant, bytes, products of tokens) are brought to one.
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0.0] = 1.0
    scaled = matrix / scale
    x = np.zeros(num_columns)
    is_free = np.zeros(num_columns, dtype=bool)
    limit = _TOLERANCE * max(float(np.linalg.norm(target)), 1e-300)
    for _ in range(3 * num_columns):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[is_free] = -np.inf
        if is_free.all() or gradient.max() <= limit:
            break
        is_free[int(gradient.argmax())] = True
        x = _within_bounds(scaled, target, x, is_free)
    unscaled: Floats = x / scale
    return unscaled


def _within_bounds(matrix: Floats, target: Floats, x: Floats, is_free: npt.NDArray[np.bool_]) -> Floats:
    """Least squares over the free columns; those that would turn negative are fixed at 0, one boundary at a time."""
    while True:
        solution = np.zeros_like(x)
        solution[is_free] = np.linalg.lstsq(matrix[:, is_free], target, rcond=None)[0]
        blocked = is_free & (solution <= 0.0)
        if not blocked.any():
            return solution
        step = float((x[blocked] / np.maximum(x[blocked] - solution[blocked], 1e-300)).min())
        x = x + step * (solution - x)
        is_free &= x > _TOLERANCE * max(float(x.max()), 1e-300)
        x[~is_free] = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Ramps:
    """A continuous function that is 0 at 0, straight between `knots` and beyond the last, and never falls."""

    knots: tuple[float, ...]
    """Ascending, the first above 0."""
    slopes: tuple[float, ...]
    """Of the stretch that ends at each knot; the last also holds beyond it."""

    @staticmethod
    def parts(knots: Sequence[float], x: float) -> list[float]:
        """How much of `x` lies in the stretch before each knot; in the last, all that is left."""
        starts = [0.0, *knots[:-1]]
        ends = [*knots[:-1], float("inf")]
        return [min(max(x - start, 0.0), end - start) for start, end in zip(starts, ends, strict=True)]

    def __call__(self, x: float) -> float:
        total, start = 0.0, 0.0
        last = min(bisect.bisect_left(self.knots, x), len(self.knots) - 1)
        for knot, slope in zip(self.knots[:last], self.slopes[:last], strict=True):
            total += slope * (knot - start)
            start = knot
        return total + self.slopes[last] * max(x - start, 0.0)


def num_pairs(load: StepLoad) -> float:
    """Pairs of a query and a key that it sees, if all sequences are alike."""
    each = load.num_tokens / load.num_sequences
    return each * (load.num_context_tokens - (load.num_tokens - load.num_sequences) / 2)


@dataclasses.dataclass(frozen=True, slots=True)
class LayerFit:
    """Seconds of one layer: matrices by tokens, attention by keys read and by pairs of query and key.

    The ramps over tokens hold what a roofline's max(bytes, operations) holds, and whatever steps a kernel's tiles make.
    It grows with the tokens, with the context, and with the sequences of a decode step. More sequences of the same
    tokens and context are less work, since each query then sees fewer keys.
    """

    base_s: float
    by_tokens: Ramps
    s_per_sequence: float
    s_per_context_token: float
    s_per_pair: float

    def __call__(self, load: StepLoad) -> float:
        return (
            self.base_s
            + self.by_tokens(load.num_tokens)
            + self.s_per_sequence * load.num_sequences
            + self.s_per_context_token * load.num_context_tokens
            + self.s_per_pair * num_pairs(load)
        )

    @staticmethod
    def of(loads: Sequence[StepLoad], times_s: Sequence[float]) -> LayerFit:
        """Fit to measured times, all above 0.

        Raises:
            ValueError: nothing was measured.
        """
        if not loads:
            raise ValueError("a fit needs at least one measured load")
        knots = tuple(float(tokens) for tokens in sorted({load.num_tokens for load in loads}))
        rows = [
            [
                1.0,
                *Ramps.parts(knots, load.num_tokens),
                load.num_sequences,
                load.num_context_tokens,
                num_pairs(load),
            ]
            for load in loads
        ]
        base_s, *slopes, per_sequence, per_context, per_pair = _relative_nnls(rows, times_s)
        return LayerFit(base_s, Ramps(knots, tuple(slopes)), per_sequence, per_context, per_pair)


@dataclasses.dataclass(frozen=True, slots=True)
class RowFit:
    """Seconds by a number of rows: a start and ramps."""

    base_s: float
    by_rows: Ramps

    def __call__(self, num_rows: int) -> float:
        return self.base_s + self.by_rows(num_rows)

    @staticmethod
    def of(rows: Sequence[int], times_s: Sequence[float], *, is_straight: bool = False) -> RowFit:
        """Fit to measured times, all above 0.

        Args:
            is_straight: one slope for all, for what is known to grow evenly.

        Raises:
            ValueError: nothing was measured.
        """
        if not rows:
            raise ValueError("a fit needs at least one measured number of rows")
        knots = (float(max(rows)),) if is_straight else tuple(float(row) for row in sorted(set(rows)))
        base_s, *slopes = _relative_nnls([[1.0, *Ramps.parts(knots, row)] for row in rows], times_s)
        return RowFit(base_s, Ramps(knots, tuple(slopes)))


def _relative_nnls(rows: Sequence[Sequence[float]], times_s: Sequence[float]) -> list[float]:
    """Coefficients whose relative errors are least in squares."""
    times = np.array(times_s, dtype=np.float64)
    found: list[float] = nnls(np.array(rows, dtype=np.float64) / times[:, None], np.ones(len(times))).tolist()
    return found
