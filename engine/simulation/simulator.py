"""The loop of an engine process on a virtual clock: the same `EngineCore` and `Scheduler` as are served."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Sequence

from engine.core import EngineCore
from engine.messages import AddGroup, StepOutputs
from engine.simulation.machine import SimulatedMachine
from engine.simulation.roofline_runner import RooflineRunner
from engine.simulation.virtual_clock import VirtualClock
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """What the engine said, and when."""

    now_s: float
    outputs: StepOutputs


class Simulator:
    """One simulated engine, from its start to its last request. The HTTP side takes no time.

    Invariant: a request is with the engine from the first turn that begins after its arrival.
    """

    def __init__(self, machine: SimulatedMachine, config: SchedulerConfig, classes: SLOClasses) -> None:
        self.clock = VirtualClock()
        self.scheduler = Scheduler(config, classes, machine.num_blocks, machine.max_model_len)
        self._runner = RooflineRunner(machine.cost, machine.shape.num_layers, self.clock)
        self.core = EngineCore(
            self.scheduler, self._runner, self.clock, block_size=config.block_size, eos_token_ids=frozenset()
        )

    def run(self, requests: Sequence[AddGroup]) -> Iterator[SimulatedTurn]:
        """Turns until the last request has left.

        Args:
            requests: in the order of their arrival.

        Raises:
            RepeatedStepFailure: steps fail, which no simulated step does.
        """
        coming = deque(requests)
        while coming or self.core.num_live_choices:
            self._wait(coming[0].arrival_s if coming else math.inf)
            due = []
            while coming and coming[0].arrival_s <= self.clock.now_s():
                due.append(coming.popleft())
            outputs = self.core.turn(due)
            self.core.raise_if_failing()
            yield SimulatedTurn(self.clock.now_s(), outputs)

    def check(self) -> None:
        """Assert what must hold between two turns."""
        self.core.check()
        assert self._runner.num_sequences <= self.core.num_live_choices, "the runner knows requests that are gone"

    def _wait(self, arrival_s: float) -> None:
        """Until the engine has something to do: as its loop waits for a message."""
        wait_s = self.core.wait_s()
        if wait_s == 0.0:
            return
        now_s = self.clock.now_s()
        # At least by one step of the number: sums are rounded, and a moment may lie too close to be reached.
        wakeup_s = math.inf if wait_s is None else max(now_s + wait_s, math.nextafter(now_s, math.inf))
        assert min(arrival_s, wakeup_s) < math.inf, "live requests, and nothing that would ever move them"
        self.clock.wait_until(min(arrival_s, wakeup_s))
