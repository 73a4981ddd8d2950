"""How a capacity search goes about it: what it varies, what it asks of each class, and when it ends."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class CapacityConfig:
    """One search. `metadata` holds the command line's help and bounds."""

    objective: tuple[str, ...] = dataclasses.field(
        default=(),
        metadata={
            "help": "Share of a class's requests that must meet their targets: NAME=SHARE, such as interactive=0.99 or "
            "interactive=99%; may be repeated. What is not given is what the server tells at /v1/slo."
        },
    )
    judge: tuple[str, ...] = dataclasses.field(
        default=(),
        metadata={"help": "Class that must keep its objective; may be repeated. Default: every class with one."},
    )
    vary: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Class whose rate is searched; the others keep theirs (rate= of --class, or --rate). Default: the "
            "whole mix grows and shrinks."
        },
    )
    frontier: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "VARIED:JUDGED>=SHARE, such as batch:interactive>=0.99: the most load of one class at which "
            "another keeps its objective; short for --vary, --judge and --objective. More judged ones after commas."
        },
    )
    resolution: float = dataclasses.field(
        default=0.05,
        metadata={"help": "The search ends when it knows the capacity to this share.", "min": 0.001, "max": 1.0},
    )
    confidence: float = dataclasses.field(
        default=0.95,
        metadata={"help": "A probe is undecided while its attainment is not so sure.", "min": 0.5, "max": 0.9999},
    )
    prolong: int = dataclasses.field(
        default=4,
        metadata={
            "help": "An undecided probe goes on, up to this many times its length; then its plain attainment counts.",
            "min": 1,
            "max": 64,
        },
    )
    min_rate: float | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Lowest rate to try, in requests per second; default: a hundredth of the first one.",
            "min": 1e-6,
        },
    )
    max_rate: float | None = dataclasses.field(
        default=None, metadata={"help": "Highest rate to try, in requests per second; default: none.", "min": 1e-6}
    )
    max_probes: int = dataclasses.field(default=24, metadata={"help": "Most rates to try.", "min": 2})
    warm_up_share: float = dataclasses.field(
        default=0.1,
        metadata={"help": "Share of each run, at its start, that is not counted.", "min": 0.0, "max": 0.45},
    )
    cool_down_share: float = dataclasses.field(
        default=0.1,
        metadata={
            "help": "Share of each run, at its end, that is not counted: no new requests burden the last ones.",
            "min": 0.0,
            "max": 0.45,
        },
    )
    check_above: bool = dataclasses.field(
        default=True,
        metadata={"help": "Try a rate above the lowest that failed: is it really worse with more load?"},
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low, high = field.metadata.get("min"), field.metadata.get("max")
            value = getattr(self, field.name)
            if low is not None and value is not None and not value >= low:
                raise ValueError(f"{field.name} is {value}, it must be at least {low}")
            if high is not None and value is not None and not value <= high:
                raise ValueError(f"{field.name} is {value}, it must be at most {high}")
        if self.frontier is not None and (self.vary is not None or self.judge):
            raise ValueError("frontier says what is varied and judged: leave out vary and judge")
