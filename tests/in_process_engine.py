"""The engine's loop over a real scheduler and a real runner, in this process and without sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.core import EngineCore
from engine.event_log import EventLog, Header
from engine.kv_cache import KVCache
from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.messages import AbortChoices, AddGroup, SLORequest, StepOutputs, StepStats, TokenLogprob
from engine.model_runner import ModelRunner
from engine.offload_manager import NoOffload, OffloadManager
from engine.sampling_params import SamplingParams
from kernels.native.row_sampling import NativeRowSampling
from kernels.native_library import NativeLibrary
from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import NO_TIERS, TierConfig
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLOClasses
from tests.fakes import HandClock


@dataclasses.dataclass
class Generated:
    """What came out of one choice."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None


class InProcessEngine:
    """Feeds messages to an EngineCore and collects its deltas; checks every owner after every turn."""

    def __init__(
        self,
        model: Any,
        *,
        num_blocks: int,
        max_model_len: int = 1024,
        eos_token_ids: frozenset[int] = frozenset(),
        kv_memory: Tensor | None = None,
        make_offload: Callable[[KVCache], OffloadManager] = lambda _: NoOffload(),
        library: NativeLibrary | None = None,
        gate: LayerGate = OPEN_GATE,
        tiers: TierConfig = NO_TIERS,
        event_log_path: Path | None = None,
        **scheduler_options: Any,
    ) -> None:
        """`library`: of the kernels that sample; the model's own may be another."""
        config = SchedulerConfig(**scheduler_options)
        self.runner = ModelRunner(
            model,
            num_blocks,
            config.block_size,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            max_model_len,
            kv_memory,
            None if library is None else NativeRowSampling(library),
            gate,
        )
        scheduler = Scheduler(config, SLOClasses(), num_blocks, max_model_len, tiers=tiers)
        self.clock = HandClock(tick_s=1e-4)
        self.event_log = None
        if event_log_path is not None:
            header = Header(
                scheduler=config, classes=DEFAULT_CLASSES, default_class="standard", num_blocks=num_blocks,
                max_model_len=max_model_len, tiers=tiers,
            )  # fmt: skip
            self.event_log = EventLog(event_log_path, header)
        self.core = EngineCore(
            scheduler, self.runner, self.clock, block_size=config.block_size, eos_token_ids=eos_token_ids,
            offload=make_offload(self.runner.kv_cache), event_log=self.event_log,
        )  # fmt: skip
        self._inbox: list[AddGroup | AbortChoices] = []
        self.generated: dict[tuple[str, int], Generated] = {}
        self.num_cached_tokens: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.stats: StepStats | None = None

    def submit(
        self,
        group_id: str,
        prompts: Sequence[Sequence[int]],
        *,
        n: int = 1,
        slo: str = "standard",
        tpot_s: float | None = None,
        **options: Any,
    ) -> None:
        """Put a group into the inbox of the next turn; `options` are those of SamplingParams, greedy by default.

        `tpot_s` is a target of its own.
        """
        sampling = SamplingParams(**({"max_tokens": 16, "temperature": 0.0} | options))
        message = AddGroup(
            group_id=group_id,
            prompts=tuple(tuple(prompt) for prompt in prompts),
            n=n,
            sampling=sampling,
            slo=SLORequest(requested=slo, granted=slo, tpot_s=tpot_s),
            arrival_s=self.clock.now_s(),
        )
        self._inbox.append(message)
        self.generated.update(((group_id, choice), Generated()) for choice in range(n * len(prompts)))

    def abort(self, group_id: str) -> None:
        self._inbox.append(AbortChoices(group_id=group_id))

    def turn(self) -> StepOutputs:
        messages, self._inbox = self._inbox, []
        outputs = self.core.turn(messages)
        self.core.check()
        self.runner.check()
        for admitted in outputs.admitted:
            self.num_cached_tokens[admitted.group_id] = admitted.num_cached_tokens
        self.refused.update((refused.group_id, refused.message) for refused in outputs.refused)
        for delta in outputs.deltas:
            choice = self.generated[delta.group_id, delta.choice]
            assert choice.finish_reason is None, f"{delta.group_id}/{delta.choice}: a delta after its end"
            choice.token_ids += delta.token_ids
            choice.logprobs += delta.logprobs
            choice.prompt_logprobs += delta.prompt_logprobs
            choice.finish_reason = delta.finish_reason
        self.stats = outputs.stats
        return outputs

    def run(self, max_turns: int = 5000) -> None:
        """Turn until nothing is left to do."""
        for _ in range(max_turns):
            if not self._inbox and self.core.num_live_choices == 0:
                return
            self.turn()
        raise AssertionError(f"not done after {max_turns} turns")

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Token ids of each prompt's continuation, every prompt a group of its own, all at once."""
        names = [f"{len(self.generated)}.{index}" for index in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            self.submit(name, [prompt], **options)
        self.run()
        return [self.generated[name, 0].token_ids for name in names]
