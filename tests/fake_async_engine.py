"""The real `AsyncEngine`, fed by a script in place of an engine process: any output, any fault, at a chosen token."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from engine.client import AsyncEngine
from engine.clock import MonotonicClock
from engine.connection import EngineConnection
from engine.errors import EngineDied
from engine.messages import (
    AbortChoices,
    AddGroup,
    ChoiceDelta,
    GroupAdmitted,
    GroupRefused,
    Ready,
    StepOutputs,
    StepStats,
    ToEngine,
    TokenLogprob,
)
from scheduler.output import RefusalReason

Output = Callable[[int, tuple[int, ...]], Sequence[int]]
"""Choice and prompt → token ids."""


@dataclasses.dataclass(slots=True)
class Script:
    """How groups are answered from now on."""

    output: Output
    granted: str | None = None
    """None: the class asked for."""
    is_best_effort: bool = False
    num_cached_tokens: int = 0
    num_host_cached_tokens: int = 0
    num_disk_cached_tokens: int = 0
    refuses: RefusalReason | None = None
    retry_after_s: float | None = None
    admits: bool = True
    dies_after: int | None = None
    """The engine ends once each choice has that many tokens."""
    fails_after: int | None = None
    """Each choice ends with reason `error` after that many tokens."""
    holds_after: int | None = None
    """Waits, after that many tokens, for `FakeEngine.release`."""
    tokens_per_delta: int = 1


class FakeEngine:
    """Plays `script` for every group; lives in the loop that made it."""

    def __init__(self, output: Output, *, vocab_size: int, eos_token_id: int, max_model_len: int = 256) -> None:
        self.script = Script(output)
        self.groups: list[AddGroup] = []
        self.aborts: list[AbortChoices] = []
        self.live: set[str] = set()
        """Groups that the engine works on."""
        self.is_holding = asyncio.Event()
        self._released = asyncio.Event()
        self._aborted_choices: dict[str, set[int]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._eos_token_id = eos_token_id
        self._num_steps = 0
        self.engine = AsyncEngine(MonotonicClock())
        self.engine.connect(cast(EngineConnection, self))
        self.ready = Ready(
            max_model_len=max_model_len,
            model_max_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=(eos_token_id,),
            block_size=16,
            num_blocks=1024,
            dtype="float32",
            device="fake",
            weights_bytes=0,
            kv_cache_bytes=0,
            threads=1,
            load_s=0.0,
        )

    def become_ready(self) -> None:
        self.engine.dispatch(self.ready)

    def tell_waiting(self, num_waiting_by_class: dict[str, int]) -> None:
        """A step that says what waits."""
        self._num_steps += 1
        stats = msgspec.structs.replace(fake_stats(self._num_steps), num_waiting_by_class=num_waiting_by_class)
        self.engine.dispatch(StepOutputs(stats=stats))

    def release(self) -> None:
        self._released.set()

    def die(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self.live.clear()
        self.engine.disconnect(EngineDied("the engine process ended by SIGKILL"))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def send(self, message: ToEngine) -> bool:
        """As `EngineConnection.send`."""
        if isinstance(message, AddGroup):
            self.groups.append(message)
            self.live.add(message.group_id)
            self._tasks[message.group_id] = asyncio.create_task(self._play(message, self.script))
        elif isinstance(message, AbortChoices):
            self.aborts.append(message)
            self._abort(message)
        return True

    def _abort(self, message: AbortChoices) -> None:
        if message.choices is None:
            self._tasks[message.group_id].cancel()
            self.live.discard(message.group_id)
        else:
            self._aborted_choices.setdefault(message.group_id, set()).update(message.choices)

    async def _play(self, group: AddGroup, script: Script) -> None:
        await asyncio.sleep(0)
        if script.refuses is not None:
            message = f"refused as scripted: {script.refuses.value}"
            refused = GroupRefused(
                group_id=group.group_id,
                reason=script.refuses.value,
                message=message,
                retry_after_s=script.retry_after_s,
            )
            self.live.discard(group.group_id)
            self._step(refused=(refused,))
            return
        if not script.admits:
            await asyncio.Event().wait()
        self._step(admitted=(self._admission(group, script),))
        await self._generate(group, script)
        self.live.discard(group.group_id)

    def _admission(self, group: AddGroup, script: Script) -> GroupAdmitted:
        return GroupAdmitted(
            group_id=group.group_id,
            granted=script.granted or group.slo.granted,
            num_cached_tokens=script.num_cached_tokens,
            num_host_cached_tokens=script.num_host_cached_tokens,
            num_disk_cached_tokens=script.num_disk_cached_tokens,
            ttft_target_s=group.slo.ttft_s or 3.0,
            tpot_target_s=group.slo.tpot_s or 0.08,
            is_best_effort=script.is_best_effort,
        )

    async def _generate(self, group: AddGroup, script: Script) -> None:
        choices = {
            index: list(script.output(index, group.prompts[index // group.n]))
            for index in range(len(group.prompts) * group.n)
        }
        if group.sampling.num_prompt_logprobs is not None:
            await self._score_prompts(group)
        position = 0
        while choices:
            await asyncio.sleep(0)
            if script.holds_after == position:
                self.is_holding.set()
                await self._released.wait()
            if script.dies_after == position:
                self.die()
                return
            deltas = []
            for index in list(choices):
                delta = self._delta(group, script, index, choices[index], position)
                deltas.append(delta)
                if delta.finish_reason is not None:
                    del choices[index]
            position += script.tokens_per_delta
            self._step(deltas=tuple(deltas))

    def _delta(self, group: AddGroup, script: Script, index: int, output: list[int], position: int) -> ChoiceDelta:
        sampling = group.sampling
        wanted = output if not sampling.ignore_eos else output * (sampling.max_tokens // max(len(output), 1) + 1)
        ids = [*wanted, self._eos_token_id][: sampling.max_tokens]
        end = position + script.tokens_per_delta
        new, reason, stop_token_id = ids[position:end], None, None
        if index in self._aborted_choices.get(group.group_id, ()):
            new, reason = [], "abort"
        elif script.fails_after is not None and end > script.fails_after:
            new, reason = ids[position : script.fails_after], "error"
        elif end >= len(ids):
            is_stopped = bool(ids) and len(ids) == len(wanted) + 1 and not sampling.ignore_eos
            reason, stop_token_id = ("stop", self._eos_token_id) if is_stopped else ("length", None)
        for place, token_id in enumerate(new):
            if token_id in sampling.stop_token_ids and reason != "error":
                new, reason, stop_token_id = new[: place + 1], "stop", token_id
                break
        num_top = sampling.num_logprobs
        return ChoiceDelta(
            group_id=group.group_id,
            choice=index,
            token_ids=tuple(new),
            logprobs=() if num_top is None else tuple(fake_logprob(token_id, num_top) for token_id in new),
            finish_reason=reason,
            stop_token_id=stop_token_id,
        )

    async def _score_prompts(self, group: AddGroup) -> None:
        """In two parts, as a prompt that is computed in chunks."""
        for part in (0, 1):
            deltas = []
            for index in range(len(group.prompts) * group.n):
                scored = group.prompts[index // group.n][1:]
                half = len(scored) // 2
                ids = scored[half:] if part else scored[:half]
                scores = tuple(fake_logprob(token_id, group.sampling.num_prompt_logprobs or 0) for token_id in ids)
                deltas.append(ChoiceDelta(group_id=group.group_id, choice=index, prompt_logprobs=scores))
            self._step(deltas=tuple(deltas))
            await asyncio.sleep(0)

    def _step(
        self,
        admitted: tuple[GroupAdmitted, ...] = (),
        refused: tuple[GroupRefused, ...] = (),
        deltas: tuple[ChoiceDelta, ...] = (),
    ) -> None:
        self._num_steps += 1
        self.engine.dispatch(
            StepOutputs(admitted=admitted, refused=refused, deltas=deltas, stats=fake_stats(self._num_steps))
        )


def fake_logprob(token_id: int, num_top: int) -> TokenLogprob:
    """The token before is always a little more probable; token 0 has no probability at all."""
    logprob = -9999.0 if token_id == 0 else -1.0 - token_id / 1000.0
    top = [(token_id - 1, -0.5), (token_id, logprob), (token_id + 1, -20.0), (7, -30.0), (8, -40.0)][:num_top]
    return TokenLogprob(token_id, logprob, tuple(item[0] for item in top), tuple(item[1] for item in top))


def fake_stats(step_id: int) -> StepStats:
    return StepStats(
        step_id=step_id,
        step_s=0.001,
        overhead_s=0.0001,
        predicted_s=None,
        num_running=0,
        num_waiting=0,
        num_waiting_by_class={},
        num_blocks_used=0,
        num_blocks=1024,
        num_cached_blocks=0,
        prompt_tokens_computed=0,
        prompt_tokens_cached=0,
        recomputed_tokens=0,
        generation_tokens=0,
        wasted_tokens=0,
        num_preemptions=0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
    )
