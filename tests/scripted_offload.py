"""What the step loop is told of streamed weights, by a script."""

from __future__ import annotations

from engine.offload_manager import NoOffload
from scheduler.kv_transfer import TransferResult
from scheduler.link import LinkSnapshot
from scheduler.output import SchedulerOutput


class ScriptedOffload(NoOffload):
    """Gives one snapshot after the other, the last one again and again; writes down what it is told."""

    def __init__(self, *snapshots: LinkSnapshot) -> None:
        self._snapshots = list(snapshots)
        self.calls: list[str] = []
        self.results: list[TransferResult] = []
        """Collected once."""
        self.void: frozenset[str] = frozenset()

    def snapshot(self) -> LinkSnapshot:
        return self._snapshots.pop(0) if len(self._snapshots) > 1 else self._snapshots[0]

    def begin(self, output: SchedulerOutput, now_s: float) -> None:
        self.calls.append("begin")

    def end(self) -> None:
        self.calls.append("end")

    def collect(self) -> tuple[TransferResult, ...]:
        results, self.results = tuple(self.results), []
        return results

    def has_results(self) -> bool:
        return bool(self.results)

    def void_requests(self, output: SchedulerOutput) -> frozenset[str]:
        return self.void
