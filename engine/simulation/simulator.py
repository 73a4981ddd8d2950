"""The loop of an engine process on a virtual clock: the same `EngineCore` and `Scheduler` as are served."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from engine.core import EngineCore
from engine.event_log import EventLog, Header
from engine.messages import AbortChoices, AddGroup, StepOutputs
from engine.offload_manager import NoOffload
from engine.simulation.machine import SimulatedMachine
from engine.simulation.roofline_runner import RooflineRunner, StepObserver
from engine.simulation.step_times import EXACT, StepTimes, StepVariation
from engine.simulation.traffic import Cancellation
from engine.simulation.virtual_clock import VirtualClock
from scheduler.config import SchedulerConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses


@dataclasses.dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """What the engine said, and when."""

    now_s: float
    outputs: StepOutputs


class _SteadyLink(NoOffload):
    """Weights that are streamed alike in every step: the runner knows what it costs, the scheduler sees the link."""

    def __init__(self, link: LinkSnapshot) -> None:
        self._link = link

    def snapshot(self) -> LinkSnapshot:
        return self._link


class Simulator:
    """One simulated engine, from its start to its last request. The HTTP side takes no time.

    Invariant: a request is with the engine from the first turn that begins after its arrival.
    """

    def __init__(
        self,
        machine: SimulatedMachine,
        config: SchedulerConfig,
        classes: SLOClasses,
        variation: StepVariation = EXACT,
        *,
        predicts_steps: bool = True,
        event_log_path: Path | None = None,
        on_step: StepObserver | None = None,
    ) -> None:
        """
        Args:
            variation: of the steps about their costs.
            predicts_steps: the scheduler has a latency model.
            event_log_path: record the run there, as a server does.

        Raises:
            EventLogError: the event log cannot be written.
        """
        self.clock = VirtualClock()
        latency = _widened(machine.latency, variation.noise) if predicts_steps else None
        self.scheduler = Scheduler(
            config,
            classes,
            machine.num_blocks,
            machine.max_model_len,
            None if latency is None else LatencyModel(latency),
        )
        steps = StepTimes(
            machine.cost, machine.shape.num_layers, streamed_bytes=machine.streamed_bytes, variation=variation
        )
        self._runner = RooflineRunner(steps, self.clock, on_step)
        header = Header(
            scheduler=config,
            classes=tuple(classes),
            default_class=classes.default.name,
            num_blocks=machine.num_blocks,
            max_model_len=machine.max_model_len,
            latency=latency,
        )
        self._event_log = None if event_log_path is None else EventLog(event_log_path, header)
        self.core = EngineCore(
            self.scheduler,
            self._runner,
            self.clock,
            block_size=config.block_size,
            eos_token_ids=frozenset(),
            event_log=self._event_log,
            offload=_SteadyLink(machine.link()),
        )

    def run(self, requests: Sequence[AddGroup], cancellations: Sequence[Cancellation] = ()) -> Iterator[SimulatedTurn]:
        """Turns until the last request has left.

        Args:
            requests: in the order of their arrival.
            cancellations: in the order of their times.

        Raises:
            RepeatedStepFailure: steps fail, which no simulated step does.
        """
        coming, leaving = deque(requests), deque(cancellations)
        while coming or self.core.num_live_choices:
            message_s = coming[0].arrival_s if coming else math.inf
            self._wait(min(message_s, leaving[0].at_s) if leaving else message_s)
            due: list[AddGroup | AbortChoices] = []
            now_s = self.clock.now_s()
            while coming and coming[0].arrival_s <= now_s:
                due.append(coming.popleft())
            while leaving and leaving[0].at_s <= now_s:
                due.append(AbortChoices(group_id=leaving.popleft().group_id))
            outputs = self.core.turn(due)
            self.core.raise_if_failing()
            yield SimulatedTurn(self.clock.now_s(), outputs)

    def close(self) -> None:
        """End the event log."""
        if self._event_log is not None:
            self._event_log.close()

    def check(self) -> None:
        """Assert what must hold between two turns."""
        self.core.check()
        assert self._runner.num_sequences <= self.core.num_live_choices, "the runner knows requests that are gone"

    def _wait(self, message_s: float) -> None:
        """Until the engine has something to do: as its loop waits for a message."""
        wait_s = self.core.wait_s()
        if wait_s == 0.0:
            return
        now_s = self.clock.now_s()
        # At least by one step of the number: sums are rounded, and a moment may lie too close to be reached.
        wakeup_s = math.inf if wait_s is None else max(now_s + wait_s, math.nextafter(now_s, math.inf))
        assert min(message_s, wakeup_s) < math.inf, "live requests, and nothing that would ever move them"
        self.clock.wait_until(min(message_s, wakeup_s))


def _widened(latency: LatencyCoefficients, noise: float) -> LatencyCoefficients:
    """With the noise that a profile would have seen."""
    decode, mixed, prefill = latency.p95_factors
    return dataclasses.replace(latency, p95_factors=(decode * noise, mixed * noise, prefill * noise))
