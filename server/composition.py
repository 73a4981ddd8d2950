"""The served parts put together, from their configs to an application."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from engine.client import AsyncEngine
from engine.config import EngineConfig
from offload.config import OffloadConfig
from scheduler.config import SchedulerConfig
from scheduler.slo import SLOClasses
from server.app import PATHS
from server.chat import ChatTemplate
from server.config import ServerConfig
from server.lifecycle import Lifecycle
from server.metrics import Metrics
from server.queue_places import QueuePlaces
from server.request_ledger import RequestLedger
from server.request_log import RequestLog
from server.service import Service
from server.supervisor import Supervisor
from server.text_worker import TextWorkers
from server.token_rate import TokenRate
from server.tokenizer import Tokenizer
from server.version import headrace_version


@dataclasses.dataclass(frozen=True, slots=True)
class ServeConfig:
    """Everything that `headrace serve` was told, checked and resolved."""

    server: ServerConfig
    engine: EngineConfig
    scheduler: SchedulerConfig
    offload: OffloadConfig
    classes: SLOClasses
    model_id: str
    """The id in the API."""


def make_supervisor(config: ServeConfig) -> Supervisor:
    """The engine's supervisor, not started."""
    return Supervisor(
        config.engine,
        config.scheduler,
        config.classes,
        offload_config=config.offload,
        stall_timeout_s=config.server.stall_timeout_s,
        max_pending_tokens=config.server.max_pending_tokens,
        log_level=config.server.log_level,
    )


def load_text(config: ServeConfig) -> TextWorkers:
    """Tokenizer, chat template and their threads. Takes a second or so: call it off the event loop.

    Raises:
        TokenizerError, TemplateError, OSError: the model's files hold none that can be used.
    """
    tokenizer = Tokenizer.load(Path(config.engine.model_path))
    template = None if tokenizer.chat_template is None else ChatTemplate(tokenizer, tokenizer.chat_template)
    return TextWorkers(
        tokenizer, template, num_threads=config.server.text_workers, timeout_s=config.server.text_timeout_s
    )


def make_service(
    config: ServeConfig, engine: AsyncEngine, text: TextWorkers, request_log: RequestLog | None
) -> Service:
    """What the routes work with; its metrics follow the engine."""
    metrics = Metrics(config.classes, config.model_id, handlers=PATHS)
    engine.on_ready.append(metrics.on_engine_ready)
    engine.on_died.append(metrics.on_engine_died)
    rate = TokenRate()
    engine.on_step += (metrics.on_step, rate.on_step)
    return Service(
        config=config.server,
        classes=config.classes,
        scheduler_policy=config.scheduler.scheduler_policy,
        model_id=config.model_id,
        version=headrace_version(),
        engine=engine,
        text=text,
        metrics=metrics,
        ledger=RequestLedger(config.classes, metrics, request_log),
        lifecycle=Lifecycle(),
        places=QueuePlaces(config.classes, config.server.max_concurrent_requests, rate),
        created_s=int(time.time()),
    )
