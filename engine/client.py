"""The engine as the HTTP process sees it: add a group, stream its deltas, abort it.

Lives in one asyncio loop and is not thread-safe. `AsyncEngine` stays the same object while processes come and go.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from engine.connection import EngineConnection
from engine.errors import (
    DuplicateGroup,
    EngineDied,
    EngineError,
    EngineUnavailable,
    GroupAborted,
    GroupRefusedError,
    SlowConsumer,
)
from engine.messages import (
    AbortChoices,
    AddGroup,
    ChoiceDelta,
    Fatal,
    GroupAdmitted,
    GroupRefused,
    Progress,
    Ready,
    StepOutputs,
    StepStats,
    ToServer,
)
from engine.pending_delta import PendingDelta
from engine.runner import Clock

DEFAULT_MAX_PENDING_TOKENS = 8192


class EngineState(enum.Enum):
    STARTING = "starting"  # the first process loads its model
    READY = "ready"
    STALLED = "stalled"  # work is outstanding and nothing was heard for too long
    DEAD = "dead"  # between the end of a process and the next one's Ready


class GroupStream:
    """The deltas of one group; an async context manager that aborts on leaving whatever is unfinished.

    Each choice's deltas end with one `finish_reason`. One consumer at a time.
    """

    def __init__(self, engine: AsyncEngine, group_id: str, num_choices: int, max_pending_tokens: int) -> None:
        self._engine = engine
        self._group_id = group_id
        self._max_pending_tokens = max_pending_tokens
        self._unfinished = set(range(num_choices))
        """Choices whose finish did not arrive."""
        self._num_handed_tokens = [0] * num_choices
        self._aborted: set[int] = set()
        self._pending: dict[int, PendingDelta] = {}
        self._num_pending_tokens = 0
        self._admitted: GroupAdmitted | None = None
        self._error: EngineError | None = None
        self._is_closed = False
        self._changed = asyncio.Event()

    @property
    def num_pending_tokens(self) -> int:
        """Tokens that arrived and were not yet handed over, over all choices."""
        return self._num_pending_tokens

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache so far; final once every prompt of the group started."""
        return 0 if self._admitted is None else self._admitted.num_cached_tokens

    @property
    def cached_tokens_by_tier(self) -> dict[str, int]:
        """The same by where they were: "device", "host", "disk"."""
        admitted = self._admitted
        host, disk = (admitted.num_host_cached_tokens, admitted.num_disk_cached_tokens) if admitted else (0, 0)
        return {"device": self.num_cached_tokens - host - disk, "host": host, "disk": disk}

    async def __aenter__(self) -> GroupStream:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()

    async def admission(self) -> GroupAdmitted:
        """Wait until the first choice starts.

        Raises:
            GroupRefusedError: refused on arrival, or expired in the queue.
            EngineDied: the engine process ended.
            GroupAborted: aborted before it started.
        """
        while self._admitted is None:
            if self._error is not None:
                raise self._error
            if self._is_closed or not self._unfinished:
                raise GroupAborted(f"{self._group_id} was aborted before it started")
            await self._wait()
        return self._admitted

    def __aiter__(self) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
        return self

    async def __anext__(self) -> tuple[ChoiceDelta, ...]:
        """Everything that arrived since the last call, one merged delta a choice.

        Raises:
            StopAsyncIteration: every choice has finished, or the group was aborted from here.
            GroupRefusedError, EngineDied: as in `admission`.
            SlowConsumer: more tokens piled up than the cap.
        """
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._is_closed or not self._unfinished:
                raise StopAsyncIteration
            await self._wait()
        deltas = tuple(pending.build() for pending in self._pending.values())
        self._pending.clear()
        self._num_pending_tokens = 0
        for delta in deltas:
            self._num_handed_tokens[delta.choice] += len(delta.token_ids)
        return deltas

    def abort_choice(self, choice: int, kept_tokens: int | None = None) -> None:
        """End one choice, for instance after a stop string; its deltas still end with a finish reason.

        Idempotent and legal in every state. `kept_tokens`: output tokens that the server used (default: all handed
        over by this stream so far); what was sampled beyond them counts as wasted.
        """
        if choice not in self._unfinished or choice in self._aborted:
            return
        self._aborted.add(choice)
        kept = self._num_handed_tokens[choice] if kept_tokens is None else kept_tokens
        self._engine.send_abort(
            AbortChoices(group_id=self._group_id, choices=(choice,), kept_tokens={choice: kept}),
        )

    def abort(self) -> None:
        """End the whole group and expect nothing more of it. Idempotent and legal in every state."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._engine.forget(self._group_id, self) and self._unfinished:
            kept = {choice: self._num_handed_tokens[choice] for choice in self._unfinished}
            self._engine.send_abort(AbortChoices(group_id=self._group_id, kept_tokens=kept))
        self._pending.clear()
        self._num_pending_tokens = 0
        self._changed.set()

    def admit(self, message: GroupAdmitted) -> None:
        """From `AsyncEngine`: it started, or one more of its prompts did."""
        self._admitted = message
        self._changed.set()

    def fail(self, error: EngineError) -> None:
        """From `AsyncEngine`: nothing more will come. What is pending is still handed over."""
        self._error = error
        self._changed.set()

    def push(self, delta: ChoiceDelta) -> bool:
        """From `AsyncEngine`: take a delta; True: it was the last of the group."""
        if delta.choice not in self._unfinished:
            return not self._unfinished
        pending = self._pending.get(delta.choice)
        if pending is None:
            pending = self._pending[delta.choice] = PendingDelta(self._group_id, delta.choice)
        pending.add(delta)
        self._num_pending_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._unfinished.discard(delta.choice)
        if self._num_pending_tokens > self._max_pending_tokens:
            self._overflow()
        self._changed.set()
        return not self._unfinished

    def _overflow(self) -> None:
        error = SlowConsumer(
            f"{self._group_id}: {self._num_pending_tokens} tokens were not read, the cap is "
            f"{self._max_pending_tokens}; read the stream faster or ask for fewer tokens"
        )
        self.abort()
        self.fail(error)

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class AsyncEngine:
    """Owns the open streams; fed by the supervisor with a connection per engine process and with its messages.

    Invariant: a stream is known here exactly as long as the engine may still send something for it.
    """

    def __init__(self, clock: Clock, *, max_pending_tokens: int = DEFAULT_MAX_PENDING_TOKENS) -> None:
        self.state = EngineState.STARTING
        self.ready: Ready | None = None
        """Of the present or last process that became ready."""
        self.progress: Progress | None = None
        self.stats: StepStats | None = None
        """Of the last step of the present process."""
        self.fatal: Fatal | None = None
        """What the present process said before it ended."""
        self.on_step: list[Callable[[StepOutputs], None]] = []
        self.on_ready: list[Callable[[Ready], None]] = []
        """Called when a process became ready, the first or a later one."""
        self.on_died: list[Callable[[], None]] = []
        """Called when a process ended."""
        self._clock = clock
        self._max_pending_tokens = max_pending_tokens
        self._connection: EngineConnection | None = None
        self._streams: dict[str, GroupStream] = {}
        self._last_heard_s = clock.now_s()
        self._busy_since_s = clock.now_s()

    @property
    def is_stalled(self) -> bool:
        return self.state is EngineState.STALLED

    @property
    def num_open_groups(self) -> int:
        """Groups of which the engine owes something."""
        return len(self._streams)

    @property
    def silent_s(self) -> float:
        """Seconds for which there was work and no message; 0 where there is no work."""
        if not self._streams:
            return 0.0
        return self._clock.now_s() - max(self._last_heard_s, self._busy_since_s)

    def add(self, group: AddGroup) -> GroupStream:
        """Hand a group to the engine; use the stream as a context manager at once.

        Raises:
            EngineUnavailable: the engine is starting, stalled or dead; worth a retry.
            DuplicateGroup: a group of that id is open.
        """
        if self.state is not EngineState.READY or self._connection is None:
            raise EngineUnavailable(f"the engine is {self.state.value}; retry in a few seconds")
        if group.group_id in self._streams:
            raise DuplicateGroup(f"group {group.group_id} is open; ids must differ")
        if not self._connection.send(group):
            raise EngineUnavailable("the engine has just ended; retry in a few seconds")
        if not self._streams:
            self._busy_since_s = self._clock.now_s()
        stream = GroupStream(self, group.group_id, len(group.prompts) * group.n, self._max_pending_tokens)
        self._streams[group.group_id] = stream
        return stream

    def connect(self, connection: EngineConnection) -> None:
        """From the supervisor: a new process is about to start."""
        self._connection = connection
        self.progress = self.stats = self.fatal = None

    def disconnect(self, error: EngineDied) -> None:
        """From the supervisor: the process ended; every open stream raises `error`."""
        self.state = EngineState.DEAD
        self._connection = self.progress = None
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.fail(error)
        for hook in self.on_died:
            hook()

    def mark_stalled(self) -> None:
        """From the supervisor: nothing was heard for too long. The next message ends it."""
        if self.state is EngineState.READY:
            self.state = EngineState.STALLED

    def dispatch(self, message: ToServer) -> None:
        """Take one message of the present process."""
        self._last_heard_s = self._clock.now_s()
        if isinstance(message, StepOutputs):
            self._take_step(message)
        elif isinstance(message, Ready):
            self.ready = message
            self.state = EngineState.READY
            for ready_hook in self.on_ready:
                ready_hook(message)
        elif isinstance(message, Progress):
            self.progress = message
        else:
            self.fatal = message

    def send_abort(self, message: AbortChoices) -> None:
        """From a stream. An engine that is gone needs none."""
        if self._connection is not None:
            self._connection.send(message)

    def forget(self, group_id: str, stream: GroupStream) -> bool:
        """From a stream: expect nothing more; False: it was forgotten before."""
        if self._streams.get(group_id) is not stream:
            return False
        del self._streams[group_id]
        return True

    def _take_step(self, step: StepOutputs) -> None:
        self.stats = step.stats
        if self.state is EngineState.STALLED:
            self.state = EngineState.READY
        for admitted in step.admitted:
            if (stream := self._streams.get(admitted.group_id)) is not None:
                stream.admit(admitted)
        for refused in step.refused:
            self._refuse(refused)
        for delta in step.deltas:
            # A late delta of an aborted group finds no stream.
            if (stream := self._streams.get(delta.group_id)) is not None and stream.push(delta):
                self._streams.pop(delta.group_id, None)
        for step_hook in self.on_step:
            step_hook(step)

    def _refuse(self, refused: GroupRefused) -> None:
        if (stream := self._streams.pop(refused.group_id, None)) is not None:
            stream.fail(GroupRefusedError(refused))
