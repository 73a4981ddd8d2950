"""Predicts the steps of a scheduler and learns from what they took; without a model, it does neither."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.latency_model import LatencyModel, StepPrediction
from scheduler.link import LinkSnapshot
from scheduler.output import ScheduledRequest, StepResult
from scheduler.request import FinishReason
from scheduler.step_features import StepFeatures


class StepTiming:
    """Between the scheduler's steps and a latency model, which it owns."""

    def __init__(self, model: LatencyModel | None) -> None:
        self._model = model

    def begin(
        self, scheduled: Sequence[ScheduledRequest], link: LinkSnapshot, *, is_alone: bool
    ) -> StepPrediction | None:
        """Of a step that is scheduled now; None: there is no model, or nothing to compute.

        Args:
            is_alone: no other step is in flight and no block is copied; else its duration is not its own.
        """
        if self._model is None or not scheduled:
            return None
        prediction = self._model.begin(StepFeatures.of(scheduled), link)
        return prediction if is_alone else dataclasses.replace(prediction, is_frozen=True)

    def end(self, prediction: StepPrediction | None, result: StepResult, duration_s: float) -> None:
        """The step is done; one that failed in part tells nothing."""
        if self._model is None or prediction is None:
            return
        if not any(one.finish_reason is FinishReason.ERROR for one in result.results):
            self._model.observe(prediction, duration_s)

    def check(self) -> None:
        """Assert what must hold between two calls."""
        if self._model is not None:
            self._model.check()
