"""All that an engine process is told when it starts: one JSON document on its standard input."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from engine.config import EngineConfig
from offload.config import OffloadConfig
from scheduler.config import SchedulerConfig
from scheduler.slo import DEFAULT_CLASSES, SLOClass, SLOClasses


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Written by the supervisor, read once by `python -m engine`."""

    engine: EngineConfig
    scheduler: SchedulerConfig
    inbox_endpoint: str
    """ZeroMQ endpoint of the messages to the engine; bound by the supervisor."""
    outbox_endpoint: str
    """ZeroMQ endpoint of the messages from the engine; bound by the supervisor."""
    parent_pid: int
    """Process id of the supervisor: the engine ends when it does."""
    offload: OffloadConfig = dataclasses.field(default_factory=OffloadConfig)
    classes: tuple[SLOClass, ...] = DEFAULT_CLASSES
    default_class: str = "standard"
    log_level: str = "INFO"
    is_restart: bool = False
    """An engine process of the same server was ready before; what no longer holds of its files must not end service."""

    @property
    def slo_classes(self) -> SLOClasses:
        """Raises ValueError: the classes contradict each other."""
        return SLOClasses(self.classes, self.default_class)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> ProcessConfig:
        """Raises msgspec.ValidationError or msgspec.DecodeError: not a configuration."""
        return msgspec.json.decode(data, type=ProcessConfig)


def endpoints(directory: Path, generation: int) -> tuple[str, str]:
    """Inbox and outbox of the `generation`-th engine process: fresh socket files, so no late message crosses over."""
    return f"ipc://{directory}/{generation}.in", f"ipc://{directory}/{generation}.out"
