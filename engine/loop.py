"""The engine's loop: inbox, turn of the core, one message out."""

from __future__ import annotations

import logging

from engine.core import EngineCore
from engine.messages import AbortChoices, AddGroup, Stop
from engine.parent_watch import ParentWatch
from engine.runner import Clock
from engine.sockets import EngineSockets
from engine.stats import DiskRoomLog, StatsLine

logger = logging.getLogger(__name__)


class EngineLoop:
    """Reads the inbox between steps; blocks on it, without polling, when there is nothing to compute."""

    def __init__(self, core: EngineCore, sockets: EngineSockets, clock: Clock, parent: ParentWatch) -> None:
        self._core = core
        self._sockets = sockets
        self._clock = clock
        self._parent = parent
        self._stats_line = StatsLine()
        self._disk_room_log = DiskRoomLog()

    def run(self) -> None:
        """Work until `Stop` or the end of the parent.

        Raises:
            RepeatedStepFailure: the runner fails step after step.
        """
        sent_s = 0.0
        while self._parent.is_parent_alive():
            messages = self._sockets.receive(self._wait_s())
            actions = [m for m in messages if isinstance(m, AddGroup | AbortChoices)]
            if any(isinstance(m, Stop) for m in messages):
                logger.info("stopping with %d live requests", self._core.num_live_choices)
                return
            if not actions and self._core.wait_s() is None:
                continue
            outputs = self._core.turn(actions, sent_s)
            turned_s = self._clock.now_s()
            self._sockets.send(outputs)
            sent_s = self._clock.now_s() - turned_s
            self._stats_line.observe(outputs.stats, turned_s)
            self._disk_room_log.observe(outputs.stats.kv_tiers)
            self._core.raise_if_failing()

    def _wait_s(self) -> float | None:
        wait_s, limit_s = self._core.wait_s(), self._parent.max_wait_s
        if wait_s is None or limit_s is None:
            return limit_s if wait_s is None else wait_s
        return min(wait_s, limit_s)
