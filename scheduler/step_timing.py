"""Predicts the steps of a scheduler and learns from what they took; without a model, it does neither."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.latency_model import LatencyModel, StepPrediction
from scheduler.link import LinkSnapshot
from scheduler.output import ScheduledRequest, StepResult
from scheduler.request import FinishReason
from scheduler.step_features import StepFeatures


@dataclasses.dataclass(frozen=True, slots=True)
class DecodePace:
    """What the decodes of one step take without the prefill beside them, 19 times of 20."""

    p95_s: float
    """At the layers streamed now."""
    p95_with_fewer_s: float
    """With one streamed layer fewer."""


class StepTiming:
    """Between the scheduler's steps and a latency model, which it owns."""

    def __init__(self, model: LatencyModel | None) -> None:
        self._model = model
        self._decodes: StepFeatures | None = None
        """Of the step begun last."""

    def begin(
        self,
        scheduled: Sequence[ScheduledRequest],
        link: LinkSnapshot,
        *,
        is_alone: bool,
        features: StepFeatures | None = None,
    ) -> StepPrediction | None:
        """Of a step that is scheduled now; None: there is no model, or nothing to compute.

        Args:
            is_alone: no other step is in flight and no block is copied; else its duration is not its own.
            features: of `scheduled`; None: to be counted.
        """
        self._decodes = None
        if self._model is None or not scheduled:
            return None
        if features is None:
            features = StepFeatures.of(scheduled)
        if features.num_decodes:
            self._decodes = features.decodes_only()
        prediction = self._model.begin(features, link)
        return prediction if is_alone else dataclasses.replace(prediction, is_frozen=True)

    def decode_pace(self, link: LinkSnapshot) -> DecodePace | None:
        """Of the step begun last; None: nothing is predicted, it decodes nothing, or no weights can be streamed."""
        k = link.num_streamed_layers
        if self._model is None or self._decodes is None or not k + link.num_resident_layers:
            return None
        p95_s = self._model.p95_s(self._decodes, link)
        fewer = dataclasses.replace(link, num_streamed_layers=k - 1) if k else link
        return DecodePace(p95_s, self._model.p95_s(self._decodes, fewer))

    def end(self, prediction: StepPrediction | None, result: StepResult, duration_s: float) -> None:
        """The step is done; one that failed in part tells nothing."""
        if self._model is None or prediction is None:
            return
        if FinishReason.ERROR not in [one.finish_reason for one in result.results]:
            self._model.observe(prediction, duration_s)

    def check(self) -> None:
        """Assert what must hold between two calls."""
        if self._model is not None:
            self._model.check()
