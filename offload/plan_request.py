"""What a plan is made for: memory, a typical load, and how careful to be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from offload.plan import Objective, Strategy
from offload.step_cost import Quantile, StepCost
from offload.step_load import StepLoad

MIN_KV_LINK_SHARE = 0.15
"""Of the link, kept free of weights for KV; a measured demand may ask for more."""
_MAX_SAMPLES = 9
"""Chunks of a long prompt whose steps are predicted one by one."""
START_TOKENS = 2048
"""The plan at start holds a request of that many tokens, or of `max_model_len` if that is less."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReferenceLoad:
    """What times are predicted for: sequences that decode together, beside which one more prompt is read in chunks."""

    num_sequences: int = 1
    context_tokens: int = 1024
    """Of each sequence that decodes."""
    prompt_tokens: int = 512
    chunk_tokens: int = 512
    """Prompt tokens a step."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, it must be at least 1")

    def decode(self) -> StepLoad:
        """One step of all sequences."""
        return StepLoad.decode(self.num_sequences, self.context_tokens)

    def prefill(self) -> Iterator[StepLoad]:
        """The steps that read the prompt, each with a token of every other sequence."""
        others = self.num_sequences - 1
        for start in range(0, self.prompt_tokens, self.chunk_tokens):
            end = min(start + self.chunk_tokens, self.prompt_tokens)
            yield StepLoad(end - start + others, self.num_sequences, end + others * self.context_tokens)

    def sampled_prefill(self) -> tuple[tuple[StepLoad, float], ...]:
        """Steps of `prefill` and for how many each stands: all of a short prompt, evenly spread ones of a long one.

        Between them times are taken to be straight in the context. In truth they bend upwards: the sum is not less.
        """
        steps = list(self.prefill())
        if len(steps) <= _MAX_SAMPLES:
            return tuple((step, 1.0) for step in steps)
        last_whole = len(steps) - 2  # the last chunk may be shorter, and stands for itself
        places = [last_whole * sample // (_MAX_SAMPLES - 2) for sample in range(_MAX_SAMPLES - 1)]
        weights = [1.0, *[0.0] * (len(places) - 1)]
        for index, (left, right) in enumerate(itertools.pairwise(places)):
            for place in range(left + 1, right + 1):
                share = (place - left) / (right - left)
                weights[index] += 1.0 - share
                weights[index + 1] += share
        return (*zip((steps[place] for place in places), weights, strict=True), (steps[-1], 1.0))


@dataclasses.dataclass(frozen=True, slots=True)
class PlanRequest:
    """The arguments of `offload.planner.plan` besides shape, cost and targets."""

    device_bytes: int
    """All that weights, slots, KV and workspace may take together."""
    host_bytes: int | None = None
    """For weights on the host; None: not limited."""
    block_size: int = 16
    """Tokens of a KV block."""
    workspace_bytes: int = 0
    kv_need_tokens: int = 0
    """KV that running and queued requests need."""
    kv_need_margin: float = 0.1
    """More than needed, as a share of it."""
    max_model_len: int | None = None
    """Tokens of a request at most; None: the model's."""
    objective: Objective = "kv"
    strategy: Strategy = "interval"
    load: ReferenceLoad = ReferenceLoad()
    kv_link_share: float = MIN_KV_LINK_SHARE
    target_margin: float = 0.97
    """Predicted times must be at most that share of their targets."""
    quantile: Quantile = Quantile.P95
    restart_s: float = 0.0
    """Of a load that waited for its slot; see `predict_step`."""
    max_slots: int = 3
    may_cut_layers: bool = True
    """Whether a part of every layer may be streamed instead of whole layers."""
    streamed_layers: int | None = None
    """Exactly that many, for experiments; None: chosen."""
    interval: int | None = None
    """Exactly the last of every that many layers, for experiments; None: chosen."""
    num_slots: int | None = None
    """Exactly that many slots, for experiments; None: chosen."""
    assumed_cost: StepCost | None = None
    """What `static_fraction` believes instead of the measured cost: a probe's peak numbers."""
    assumed_link_factor: float = 1.0
    """What `static_fraction` believes the bandwidth of the link to be, over the true one."""
    assumed_sharers: int = 1
    """Devices that `static_fraction` believes to share the link all the time."""

    def __post_init__(self) -> None:
        for name, low in (
            ("device_bytes", 1),
            ("block_size", 1),
            ("workspace_bytes", 0),
            ("kv_need_tokens", 0),
            ("max_slots", 1),
            ("assumed_sharers", 1),
        ):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}, it must be at least {low}")
        for name, least in (("host_bytes", 0), ("max_model_len", 1), ("streamed_layers", 0), ("interval", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, it must be at least {least}")
        if self.num_slots is not None and self.num_slots < 1:
            raise ValueError(f"num_slots is {self.num_slots}, it must be at least 1")
        if not 0.0 <= self.kv_link_share < 1.0:
            raise ValueError(f"kv_link_share is {self.kv_link_share}, it must lie in 0..1 and leave a link for weights")
        if not self.target_margin > 0.0:
            raise ValueError(f"target_margin is {self.target_margin}, it must be above 0")
        if not self.assumed_link_factor > 0.0:
            raise ValueError(f"assumed_link_factor is {self.assumed_link_factor}, it must be above 0")

    @property
    def slots(self) -> tuple[int, ...]:
        """Numbers of slots to compare."""
        return tuple(range(1, self.max_slots + 1)) if self.num_slots is None else (self.num_slots,)
