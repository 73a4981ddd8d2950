"""Measures what the engine spends on a step beside layers and logits: scheduling, batch, sampling, the message."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from engine.clock import MonotonicClock
from engine.core import EngineCore
from engine.layers.layer_gate import OPEN_GATE, LayerGate
from engine.messages import AddGroup, SLORequest
from engine.model_runner import ModelRunner
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.sampling_params import SamplingParams
from engine.weights import LoadedModel
from kernels.attention.base import AttentionMetadata
from kernels.row_sampling import RowSampling
from offload.measurements import RowPoint
from scheduler.config import SchedulerConfig
from scheduler.scheduler import Scheduler
from scheduler.slo import SLOClasses

NUM_STEPS = 12


class TimedDecoder:
    """A decoder that adds up what is spent in it."""

    def __init__(self, decoder: Decoder | NativeDecoder, now_s: Callable[[], float]) -> None:
        self._decoder = decoder
        self._now_s = now_s
        self.config = decoder.config
        self.dtype = decoder.dtype
        self.spent_s = 0.0

    def forward(
        self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, gate: LayerGate = OPEN_GATE
    ) -> Tensor:
        started_s = self._now_s()
        hidden = self._decoder.forward(token_ids, kv_cache, metadata, gate)
        self.spent_s += self._now_s() - started_s
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        started_s = self._now_s()
        logits = self._decoder.logits(hidden)
        self.spent_s += self._now_s() - started_s
        return logits


def measure_overhead(
    model: LoadedModel,
    config: SchedulerConfig,
    num_sequences: int,
    now_s: Callable[[], float],
    sampling: RowSampling | None = None,
    num_steps: int = NUM_STEPS,
) -> RowPoint:
    """The real scheduler, runner and sampler decode `num_sequences` requests of one token.

    Args:
        sampling: of the runner that will serve; see there.
        num_steps: that are measured; one more computes.
    """
    decoder = TimedDecoder(model.decoder, now_s)
    num_tokens = num_steps + 2
    blocks_each = -(-(num_tokens + 1) // config.block_size)
    runner = ModelRunner(
        dataclasses.replace(model, decoder=cast(Any, decoder)),
        num_sequences * blocks_each + 1,
        config.block_size,
        config.max_num_seqs,
        config.max_num_batched_tokens,
        num_tokens + 1,
        sampling=sampling,
    )
    classes = SLOClasses()
    scheduler = Scheduler(config, classes, num_sequences * blocks_each + 1, num_tokens + 1)
    clock = MonotonicClock()
    core = EngineCore(scheduler, runner, clock, block_size=config.block_size, eos_token_ids=frozenset())
    arrival_s = clock.now_s()
    core.turn([_group(index, num_tokens, classes.default.name, arrival_s) for index in range(num_sequences)])
    samples_s = []
    for _ in range(num_steps):
        started_s, decoder.spent_s = now_s(), 0.0
        outputs = core.turn([])
        samples_s.append(max(now_s() - started_s - decoder.spent_s, 1e-9))
        core.raise_if_failing()
        assert len(outputs.deltas) == num_sequences, f"{len(outputs.deltas)} of {num_sequences} requests decoded"
    return RowPoint(num_sequences, tuple(samples_s))


def _group(index: int, num_tokens: int, class_name: str, arrival_s: float) -> AddGroup:
    return AddGroup(
        group_id=f"profile-{index}",
        prompts=((0,),),
        n=1,
        sampling=SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=index),
        slo=SLORequest(requested=class_name, granted=class_name),
        arrival_s=arrival_s,
    )
