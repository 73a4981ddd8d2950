"""Options of `headrace plan` that are of nothing else."""

from __future__ import annotations

import dataclasses

from offload.config import MAX_LINK_GBPS, MIN_LINK_GBPS, EmulatedId
from offload.plan import Objective, Strategy


@dataclasses.dataclass(frozen=True, slots=True)
class PlanConfig:
    """What is to be planned. `metadata["help"]` is the command line's text.

    Raises:
        ValueError: a value is out of bounds, or two contradict each other.
    """

    model: str | None = dataclasses.field(
        default=None, metadata={"help": "The same as MODEL: a path, a hub id, an alias or a built-in shape."}
    )
    gpu: EmulatedId | None = dataclasses.field(
        default=None,
        metadata={"help": "Plan for this accelerator by the built-in table; default: this machine, by its record."},
    )
    device_memory_bytes: int | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Device memory for weights, slots, KV and workspace together; default: 90 % of the accelerator's, "
            "and on this machine all weights and --kv-cache-memory.",
            "min": 1,
        },
    )
    host_memory_bytes: int | None = dataclasses.field(
        default=None, metadata={"help": "Host memory for streamed weights; default: not limited.", "min": 0}
    )
    link_gbps: float | None = dataclasses.field(
        default=None,
        metadata={
            "help": "10^9 bytes per second of the link: here at most, with --gpu exactly.",
            "min": MIN_LINK_GBPS,
            "max": MAX_LINK_GBPS,
        },
    )
    emulate: EmulatedId | None = dataclasses.field(
        default=None, metadata={"help": "On this machine: the link as `serve --emulate` holds it."}
    )
    offload_strategy: Strategy = dataclasses.field(
        default="interval", metadata={"help": "interval follows the targets, the others are for comparison."}
    )
    offload_objective: Objective = dataclasses.field(
        default="kv",
        metadata={"help": "kv: the least streaming that leaves the KV needed; host-bytes: the most targets allow."},
    )
    num_sequences: int = dataclasses.field(
        default=1, metadata={"help": "Sequences that decode together.", "min": 1, "option": "batch"}
    )
    context_tokens: int = dataclasses.field(
        default=1024, metadata={"help": "Context of each of them.", "min": 1, "option": "context"}
    )
    prompt_tokens: int = dataclasses.field(
        default=512, metadata={"help": "Prompt whose first token is timed.", "min": 1, "option": "prompt"}
    )
    kv_need_tokens: int | None = dataclasses.field(
        default=None,
        metadata={"help": "KV wanted at start; default: of all sequences.", "min": 0, "option": "kv-tokens"},
    )
    classes_path: str | None = dataclasses.field(
        default=None, metadata={"help": "TOML file of latency classes that replaces the built-in table."}
    )
    json_path: str | None = dataclasses.field(default=None, metadata={"help": "Write the plan to this file."})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low, high, value = field.metadata.get("min"), field.metadata.get("max"), getattr(self, field.name)
            if low is not None and value is not None and value < low:
                raise ValueError(f"{field.name} is {value}, it must be at least {low}")
            if high is not None and value is not None and value > high:
                raise ValueError(f"{field.name} is {value}, it must be at most {high}")
        if self.emulate is not None and self.gpu is not None:
            raise ValueError(f"gpu ({self.gpu}) and emulate ({self.emulate}): emulation is of this machine; give one")
        if self.emulate is not None and self.link_gbps is not None:
            raise ValueError(
                f"link_gbps ({self.link_gbps:g}) and emulate ({self.emulate}) both set the speed of the link; give one"
            )
