"""What an engine process serves and how much memory it takes."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine process. `metadata["help"]` is the command line's text."""

    model_path: str
    """A directory with config.json and safetensors, or one GGUF file; resolved before the engine starts."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = dataclasses.field(
        default="auto",
        metadata={
            "help": "Type of weights, activations and KV; auto: weights as the file stores them, the others bfloat16 "
            "where the processor computes it, else float32."
        },
    )
    quantize: Literal["int8", "int4"] | None = dataclasses.field(
        default=None,
        metadata={"help": "Round the plain numbers of a checkpoint to integers of 8 or 4 bits, 32 to a scale."},
    )
    kv_cache_memory_bytes: int = dataclasses.field(
        default=512 * 1024**2, metadata={"help": "Device memory for KV blocks.", "min": 1, "unit": "bytes"}
    )
    max_model_len_tokens: int | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Longest prompt plus output; default: the model's, capped by the KV cache.",
            "min": 1,
            "option": "max-model-len",
        },
    )
    threads: int | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Compute threads; default: OMP_NUM_THREADS, else as many cores as prove useful at start.",
            "min": 1,
        },
    )
    kernels: Literal["auto", "native", "torch"] = dataclasses.field(
        default="auto",
        metadata={
            "help": "Who computes: native kernels (compiled at first use), or PyTorch's operators (slower); "
            "auto: native where they can be built."
        },
    )
    batch_invariant: bool = dataclasses.field(
        default=False,
        metadata={
            "help": "Same bits for a request whatever else is in its batch: always so with native kernels, "
            "slower with PyTorch's operators."
        },
    )
    predict_steps: bool = dataclasses.field(
        default=True,
        metadata={
            "help": "Predict how long steps take, by a record of this machine; where the cache has none, the start "
            "measures a brief one, about 2 s."
        },
    )
    event_log_path: str | None = dataclasses.field(
        default=None, metadata={"help": "Record every step's inputs to this file, for bit-identical replay."}
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low = field.metadata.get("min")
            value = getattr(self, field.name)
            if low is not None and value is not None and value < low:
                raise ValueError(f"{field.name} is {value}, it must be at least {low}")
