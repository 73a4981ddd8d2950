"""How long a step takes: predicted from its composition, corrected by the steps before, inverted to a chunk.

A kind of step has a correction of its own. A prediction is the largest of those of the step's kind and of the kinds
below it, each for the part of the step that is of that kind: so the prediction grows with every count, whatever the
corrections are.
"""

from __future__ import annotations

import bisect
import dataclasses
import math

from scheduler.drift import Drift
from scheduler.latency_coefficients import LatencyCoefficients, StepKind
from scheduler.link import LinkSnapshot
from scheduler.residuals import Residuals
from scheduler.step_features import StepFeatures


@dataclasses.dataclass(frozen=True, slots=True)
class StepPrediction:
    """What one step is expected to take."""

    mean_s: float
    """To order by."""
    p95_s: float
    """To judge feasibility by: at the residuals' 95th percentile, widened while the machine drifts."""
    uncorrected_s: float
    kind: StepKind
    is_frozen: bool
    """The first step of its size, or one beside a swap or a changing placement: nothing is learned from it."""

    def after(self, stall_s: float) -> StepPrediction:
        """The same step, if it waits for loads for so long."""
        if not stall_s:
            return self
        return dataclasses.replace(self, mean_s=self.mean_s + stall_s, p95_s=self.p95_s + stall_s)


class LatencyModel:
    """Owns the corrections. No clock, no randomness: equal histories give equal predictions."""

    def __init__(self, coefficients: LatencyCoefficients) -> None:
        self._coefficients = coefficients
        self._residuals = tuple(Residuals(p95) for p95 in coefficients.p95_factors)
        self._drift = Drift()
        self._used_sizes: set[tuple[StepKind, int]] = set()
        self._num_streamed_layers: int | None = None
        self._last: tuple[StepPrediction, float] | None = None
        """The step before and its duration: whether the placement moved in it, only the next snapshot shows."""

    @property
    def margin(self) -> float:
        """By which P95 predictions are widened now; 1: nothing drifts."""
        return self._drift.margin

    def predict(self, features: StepFeatures, link: LinkSnapshot) -> StepPrediction:
        """Of a step that may be; nothing changes."""
        kind = self._coefficients.kind_of(features.prefill_tokens)
        is_first_use = _size(kind, features) not in self._used_sizes
        has_moved = self._num_streamed_layers not in (None, link.num_streamed_layers)
        has_swaps = link.h2d.queued_kv_load_bytes > 0 or link.d2h.queued_kv_store_bytes > 0
        return StepPrediction(
            self.mean_s(features, link),
            self.p95_s(features, link),
            self._coefficients.step_s(features, kind, link, self._coefficients.link_s(link)),
            kind,
            is_first_use or has_moved or has_swaps,
        )

    def begin(self, features: StepFeatures, link: LinkSnapshot) -> StepPrediction:
        """Of a step that is scheduled now; from here its size has been used, and the step before is learned from."""
        if self._last is not None and self._num_streamed_layers == link.num_streamed_layers:
            self._learn(*self._last)
        self._last = None
        prediction = self.predict(features, link)
        self._used_sizes.add(_size(prediction.kind, features))
        self._num_streamed_layers = link.num_streamed_layers
        return prediction

    def observe(self, prediction: StepPrediction, measured_s: float) -> None:
        """A step that was begun, and nothing else, took that long. It counts once the next one begins."""
        if not prediction.is_frozen and measured_s > 0.0 and prediction.uncorrected_s > 0.0:
            self._last = prediction, measured_s

    def _learn(self, prediction: StepPrediction, measured_s: float) -> None:
        observed = self._residuals[prediction.kind]
        residual = observed.observe(measured_s / prediction.uncorrected_s)
        for residuals in self._residuals:
            if residuals is not observed:
                residuals.fade(observed.correction)
        self._drift.observe(residual)

    def mean_s(self, features: StepFeatures, link: LinkSnapshot) -> float:
        """Expected duration."""
        link_s = self._coefficients.link_s(link)
        return max(self._term_s(features, kind, link, link_s, 1.0) for kind in self._kinds(features))

    def p95_s(self, features: StepFeatures, link: LinkSnapshot) -> float:
        """Duration that a step stays within 19 times of 20."""
        link_s = self._coefficients.link_s(link, is_slow=True)
        margin = self._drift.margin
        return max(
            self._term_s(features, kind, link, link_s, self._residuals[kind].p95 * margin)
            for kind in self._kinds(features)
        )

    def max_chunk_tokens(
        self, features: StepFeatures, prefix_tokens: int, max_tokens: int, budget_s: float, link: LinkSnapshot
    ) -> int:
        """The most tokens of one more prefill that keep a step within a budget at the P95; 0: not one.

        The chunk counts as one that samples. In closed form: a chunk's cost is a quadratic between two knots.

        Args:
            features: of the step without it.
            prefix_tokens: computed before the chunk.
            max_tokens: of the chunk.
        """

        link_s = self._coefficients.link_s(link, is_slow=True)
        factors = [residuals.p95 * self._drift.margin for residuals in self._residuals]

        def is_within(num_tokens: int, first_kind: int = StepKind.MIXED) -> bool:
            """By `p95_s`; the part of kind DECODE does not grow with the chunk."""
            chunk = features.with_chunk(num_tokens, prefix_tokens, samples=True)
            return all(
                self._term_s(chunk, kind, link, link_s, factors[kind]) <= budget_s
                for kind in self._kinds(chunk)[first_kind:]
            )

        if max_tokens < 1 or not is_within(1, StepKind.DECODE):
            return 0
        ends = self._ends(features, max_tokens)
        num_within = bisect.bisect_left(ends, True, key=lambda end: not is_within(end))
        low = ends[num_within - 1] if num_within else 1  # within the budget
        if num_within == len(ends) or ends[num_within] == low + 1:
            return low
        end = ends[num_within]
        chunk = features.with_chunk(low, prefix_tokens, samples=True)
        found = min(low + self._extension(chunk, prefix_tokens + low, budget_s, link), end - 1)
        # What rounding of the root may have moved by one.
        while found > low and not is_within(found):
            found -= 1
        while found + 1 < end and is_within(found + 1):
            found += 1
        return found

    def check(self) -> None:
        """Assert what must hold between two calls."""
        for residuals in self._residuals:
            residuals.check()
        self._drift.check()

    def _kinds(self, features: StepFeatures) -> tuple[StepKind, ...]:
        """The step's own kind and those below it."""
        return _KINDS_UP_TO[self._coefficients.kind_of(features.prefill_tokens)]

    def _term_s(
        self, features: StepFeatures, kind: StepKind, link: LinkSnapshot, link_s: float, factor: float
    ) -> float:
        part = self._part(features, kind)
        if not part.num_rows:
            return 0.0
        return self._coefficients.step_s(part, kind, link, link_s) * self._residuals[kind].correction * factor

    def _part(self, features: StepFeatures, kind: StepKind) -> StepFeatures:
        """The largest part of a step that is of `kind`, at most its own."""
        limit = self._coefficients.prefill_step_tokens
        if kind is StepKind.DECODE and features.prefill_tokens:
            num_decodes = features.num_decodes
            return StepFeatures(
                0,
                num_decodes,
                features.decode_context_tokens,
                features.max_decode_context_tokens,
                0.0,
                min(features.num_samples, num_decodes),
            )
        if kind is StepKind.MIXED and features.prefill_tokens > limit:
            return StepFeatures(
                limit,
                features.num_decodes,
                features.decode_context_tokens,
                features.max_decode_context_tokens,
                features.prefill_pairs,
                features.num_samples,
            )
        return features

    def _ends(self, features: StepFeatures, max_tokens: int) -> list[int]:
        """Where the cost of a growing chunk may bend, ascending, the last at its most tokens."""
        rows, limit = features.num_rows, self._coefficients.prefill_step_tokens - features.prefill_tokens
        bends = {math.floor(knot) - rows for knot in self._coefficients.rows.knots}
        # The step of kind MIXED bends where its rows stop to grow, and one row on is of kind PREFILL.
        bends |= {limit, limit + 1, max_tokens}
        return sorted({bend for bend in bends if 1 < bend <= max_tokens} | {max_tokens})

    def _extension(self, features: StepFeatures, prefix_tokens: int, budget_s: float, link: LinkSnapshot) -> int:
        """How many tokens its last chunk may grow by, up to the next bend: the least over the kinds that count."""
        c = self._coefficients
        link_s = c.link_s(link, is_slow=True)
        fits = []
        for kind in self._kinds(features):
            part = self._part(features, kind)
            factor = self._residuals[kind].correction * self._residuals[kind].p95 * self._drift.margin
            room_s = budget_s / factor - c.sync_s
            if kind is StepKind.DECODE or link_s > room_s:
                continue  # does not grow with the chunk; it was within the budget
            slowdown = c.slowdown(kind, link)
            room_s = (room_s - c.head_s(part.num_samples)) / slowdown - c.layers_s(part)
            is_growing = kind is StepKind.PREFILL or features.prefill_tokens < c.prefill_step_tokens
            slope_s = c.rows.slope_from(part.num_rows) + c.s_per_prefill_token if is_growing else 0.0
            fits.append(_root(c.s_per_prefill_pair / 2, slope_s + c.s_per_prefill_pair * prefix_tokens, room_s))
        return int(min(fits, default=0.0))


_KINDS_UP_TO = tuple(tuple(StepKind)[: kind + 1] for kind in StepKind)


def _root(square_s: float, slope_s: float, room_s: float) -> float:
    """The largest x for which square x² + slope x stays within the room; 2**31 where it always does."""
    if room_s <= 0.0:
        return 0.0
    divisor = slope_s + math.sqrt(slope_s * slope_s + 4.0 * square_s * room_s)
    return min(2.0 * room_s / divisor, 2.0**31) if divisor > 0.0 else 2.0**31


def _size(kind: StepKind, features: StepFeatures) -> tuple[StepKind, int]:
    """Steps of one kind and within a factor of 2 in rows have been used when one of them has."""
    return kind, features.num_rows.bit_length()
