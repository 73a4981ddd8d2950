"""What the engine raises, on either side of the process boundary."""

from __future__ import annotations

from engine.messages import GroupRefused


class EngineError(Exception):
    """Root of this tree; the message names the value, the limit and the way out."""


class EngineUnavailable(EngineError):
    """The engine takes no request now: it is starting, stalled or dead. 503; worth a retry."""


class EngineDied(EngineError):
    """The engine process ended under an open stream. Its tokens so far stand; no more will come."""


class EngineStartError(EngineError):
    """The first engine process ended before it was ready; starting it again would end the same way."""


class GroupRefusedError(EngineError):
    """The scheduler refused the group, or it expired in the queue; `refused` says why."""

    def __init__(self, refused: GroupRefused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class GroupAborted(EngineError):
    """The group was aborted from this side before it started."""


class SlowConsumer(EngineError):
    """A stream was not read while more tokens piled up than its cap; the group was aborted."""


class DuplicateGroup(EngineError):
    """A group id is in use by a live group. Always a bug of the caller."""


class RepeatedStepFailure(EngineError):
    """Several steps in a row failed: the device or the model is broken, a fresh process may not be."""


class EventLogError(EngineError):
    """A log cannot be written or read: not a log, an unknown version, or a damaged frame."""


class ReplayMismatch(EventLogError):
    """The scheduler decided otherwise in replay than in the recording."""

    def __init__(self, process: int, step_id: int, what: str) -> None:
        super().__init__(f"process {process}, step {step_id}: {what} differs from the recording")
        self.process = process
        """Which of those that wrote the log, from 1; each numbers its steps anew."""
        self.step_id = step_id
        self.what = what
