"""Options of `headrace simulate` that are of nothing else."""

from __future__ import annotations

import dataclasses

from offload.config import EmulatedId

DEFAULT_LOAD = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class SimulateConfig:
    """What is to be simulated. `metadata["help"]` is the command line's text.

    Raises:
        ValueError: a value is out of bounds, or two contradict each other.
    """

    model: str | None = dataclasses.field(
        default=None, metadata={"help": "The same as MODEL: a path, a hub id, an alias or a built-in shape."}
    )
    gpu: EmulatedId | None = dataclasses.field(
        default=None,
        metadata={"help": "Simulate this accelerator by the built-in table; default: this machine, by its record."},
    )
    mix: tuple[str, ...] = dataclasses.field(
        default=(),
        metadata={
            "help": "Latency class and its share: NAME:SHARE[,prompt=TOKENS][,output=TOKENS], TOKENS being a number or "
            "LOW-HIGH; may be repeated. None: the default class, 128 tokens of prompt and 32 of output."
        },
    )
    trace_path: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Times and lengths of this trace (see `headrace trace`) in place of drawn ones, its first "
            "--requests rows; where it names no class, classes are drawn by the shares of --mix."
        },
    )
    rate: float | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Requests per second, arriving at random (Poisson); with --trace its times are scaled to that "
            "mean rate.",
            "min": 1e-6,
        },
    )
    load: float | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Instead of --rate: a multiple of the capacity, which is the highest rate at which `priority` "
            "serves 90 % of the offered requests of protected classes in time. Default: 1.",
            "min": 1e-3,
        },
    )
    requests: int = dataclasses.field(
        default=2000,
        metadata={
            "help": "Requests that arrive. Too few are served before a queue has grown, and overstate the capacity.",
            "min": 1,
        },
    )
    seed: int = dataclasses.field(
        default=0, metadata={"help": "Of arrivals, classes and lengths: the same seed gives the same result."}
    )
    cv: float = dataclasses.field(
        default=1.0,
        metadata={
            "help": "Standard deviation of the times between arrivals over their mean: 1 is Poisson, more comes in "
            "clumps. Not with --trace.",
            "min": 0.01,
        },
    )
    burst: float = dataclasses.field(
        default=1.0,
        metadata={
            "help": "In 15 s of every minute arrivals come so many times as fast as between; the mean rate stays. Not "
            "with --trace.",
            "min": 1,
        },
    )
    cancel: float = dataclasses.field(
        default=0.0,
        metadata={"help": "Share of requests whose client leaves, 2 s after arrival on average.", "min": 0},
    )
    noise: float = dataclasses.field(
        default=1.0,
        metadata={
            "help": "95th percentile of a step's time over its median; 1: every step takes what the cost model says.",
            "min": 1,
        },
    )
    streamed_layers: int = dataclasses.field(
        default=0, metadata={"help": "Layers that are copied to the device in every step.", "min": 0}
    )
    classes_path: str | None = dataclasses.field(
        default=None, metadata={"help": "TOML file of latency classes that replaces the built-in table."}
    )
    json_path: str | None = dataclasses.field(
        default=None,
        metadata={"help": "Write the result as JSON to this file; - is stdout, the table then is on stderr."},
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low, value = field.metadata.get("min"), getattr(self, field.name)
            if low is not None and value is not None and not value >= low:
                raise ValueError(f"{field.name} is {value}, it must be at least {low}")
        if self.rate is not None and self.load is not None:
            raise ValueError(f"rate ({self.rate:g}) and load ({self.load:g}) both set how fast requests come; give one")
        if not self.cancel < 1.0:
            raise ValueError(f"cancel is {self.cancel:g}, a share of the requests; it must be below 1")
        if self.trace_path is not None and (self.cv, self.burst) != (1.0, 1.0):
            raise ValueError("trace_path has arrivals of its own: leave out cv and burst, or the trace")
