"""Limits of a step and of the queue."""

from __future__ import annotations

import dataclasses
from typing import Literal

PolicyName = Literal["fcfs", "priority", "edf", "deadline"]


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How much one step and one queue may hold. `metadata["help"]` is the command line's text."""

    max_num_batched_tokens: int = dataclasses.field(
        default=512, metadata={"help": "Tokens computed in one step, over all requests.", "min": 1}
    )
    max_num_seqs: int = dataclasses.field(
        default=64, metadata={"help": "Requests that hold blocks at a time.", "min": 1}
    )
    block_size: int = dataclasses.field(default=16, metadata={"help": "Tokens in a KV block.", "min": 1})
    max_queued_requests: int = dataclasses.field(
        default=1024, metadata={"help": "Requests that wait, over all classes, before 503.", "min": 1}
    )
    enable_prefix_caching: bool = dataclasses.field(
        default=True, metadata={"help": "Share the KV blocks of equal prompt prefixes."}
    )
    scheduler_policy: PolicyName = dataclasses.field(
        default="deadline",
        metadata={
            "help": "fcfs: by arrival, steps bounded by tokens; priority: by class; edf: by deadline; deadline: by "
            "deadline where the higher classes can bear it. All but fcfs end a step before the tightest deadline."
        },
    )
    admission: Literal["caps", "promise"] = dataclasses.field(
        default="promise",
        metadata={
            "help": "Refuse by the queues' caps alone, or also where a class that is refused or degraded when its "
            "targets cannot be met would be late."
        },
    )
    max_step_s: float = dataclasses.field(
        default=0.2,
        metadata={"help": "Longest step with prefill, so that an arrival waits no longer.", "min": 0.001},
    )
    egress_s: float = dataclasses.field(
        default=0.002, metadata={"help": "Time between the end of a step and the socket.", "min": 0.0}
    )
    long_prompt_tokens: int = dataclasses.field(
        default=8192,
        metadata={"help": "Of prompts longer than this, one at a time is computed beside others.", "min": 1},
    )
    max_preemptions: int = dataclasses.field(
        default=3,
        metadata={
            "help": "Times a request may be preempted; at its next start it gets every block it may need and stays.",
            "min": 1,
        },
    )
    preemption_mode: Literal["auto", "swap", "recompute"] = dataclasses.field(
        default="auto",
        metadata={
            "help": "What becomes of a preempted request's KV blocks that the host does not have yet: swap: they are "
            "stored there; recompute: they are computed again; auto: whatever is priced lower at the load of the "
            "moment."
        },
    )
    max_victims_per_step: int = dataclasses.field(
        default=16, metadata={"help": "Requests preempted in one step at most.", "min": 1}
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low = field.metadata.get("min")
            value = getattr(self, field.name)
            if low is not None and value < low:
                raise ValueError(f"{field.name} is {value}, it must be at least {low}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_num_seqs ({self.max_num_seqs}): each running request decodes one token a step"
            )
