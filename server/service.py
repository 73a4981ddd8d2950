"""The parts that the routes work with, put together by the composition root."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from engine.client import AsyncEngine, EngineState
from engine.errors import EngineUnavailable
from engine.messages import Ready
from scheduler.config import PolicyName
from scheduler.slo import SLOClasses
from server.config import ServerConfig
from server.errors import ApiError, model_not_found, overloaded
from server.lifecycle import Lifecycle
from server.metrics import Metrics
from server.queue_places import QueuePlaces
from server.request_ledger import RequestLedger
from server.text_worker import TextWorkers
from server.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """One served model and everything around it."""

    config: ServerConfig
    classes: SLOClasses
    scheduler_policy: PolicyName
    model_id: str
    """The id that the API shows and takes."""
    version: str
    engine: AsyncEngine
    text: TextWorkers
    metrics: Metrics
    ledger: RequestLedger
    lifecycle: Lifecycle
    places: QueuePlaces
    created_s: int
    """Unix time of the start, shown as the model's `created`."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    def ready(self) -> Ready:
        """What the engine can do now.

        Raises:
            EngineUnavailable: it is starting, stalled or dead.
        """
        if self.engine.state is not EngineState.READY or self.engine.ready is None:
            raise EngineUnavailable(f"the engine is {self.engine.state.value}: retry in a few seconds")
        return self.engine.ready

    def last_ready(self) -> Ready:
        """The same, of a model that is loaded or was: enough to describe it.

        Raises:
            ApiError: 503, no engine process was ready yet.
        """
        if self.engine.ready is None:
            raise overloaded("the model is being loaded: retry in a few seconds", "engine_unavailable")
        return self.engine.ready

    def num_waiting_by_class(self) -> Mapping[str, int]:
        """Choices that wait in the engine, as it said last."""
        return {} if self.engine.stats is None else self.engine.stats.num_waiting_by_class

    def check_model(self, model: str | None) -> None:
        """Absent means the served one.

        Raises:
            ApiError: 404.
        """
        error: ApiError | None = None if model in (None, self.model_id) else model_not_found(str(model), self.model_id)
        if error is not None:
            raise error
