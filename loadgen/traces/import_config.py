"""What an import does to the rows of a source."""

from __future__ import annotations

import dataclasses
import math

from loadgen.traces.length_limit import TooLong
from loadgen.traces.source_format import SourceFormat
from loadgen.traces.trace_error import TraceError

_READ_BY = {
    "block_tokens": {
        SourceFormat.MOONCAKE,
        SourceFormat.BAILIAN,
        SourceFormat.TRACELAB,
        SourceFormat.TRACELAB_REPLAY,
        SourceFormat.OTEL,
        SourceFormat.SHAREGPT,
    },
    "chars_per_token": {SourceFormat.OTEL, SourceFormat.SHAREGPT},
    "keep_text": {SourceFormat.OTEL, SourceFormat.SHAREGPT},
    "mean_think_s": {SourceFormat.SHAREGPT},
    "rate_per_s": {SourceFormat.SHAREGPT, SourceFormat.SERVEGEN},
    "start_s": {SourceFormat.SERVEGEN},
    "duration_s": {SourceFormat.SERVEGEN},
    "skip_incomplete": {SourceFormat.SERVEGEN},
}
_OPTIONS = {
    "block_tokens": "--block",
    "mean_think_s": "--think",
    "rate_per_s": "--rate",
    "start_s": "--start",
    "duration_s": "--duration",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ImportConfig:
    """What is done to the rows, in the order of the fields down to `too_long`; below it, what some formats need."""

    block_tokens: int | None = None
    """Of the block ids; None: the format's own."""
    first_rows: int | None = None
    """Read only so many; None: all."""
    slo_class: str | None = None
    """The class of every request that `class_of` has none for; None: the trace tells none."""
    class_of: tuple[tuple[str, str], ...] = ()
    """(kind, class): the class of the requests that the source tells apart by this kind."""
    spread_ties: bool = False
    """Spread the times of a coarse clock inside their step."""
    seed: int = 0
    """Of what is drawn."""
    max_tokens: int | None = None
    """Prompt and answer together; None: no limit."""
    too_long: TooLong = "fail"
    """What happens beyond it."""
    format: SourceFormat | None = None
    """What the file must be; None: what it looks like."""
    chars_per_token: float = 4.0
    """By which the length of a text is told where no count is given: about right for English and a large vocabulary."""
    keep_text: bool = False
    """Keep the prompts' text, where the source has it."""
    rate_per_s: float | None = None
    """Conversations (ShareGPT) or requests (ServeGen) each second. None: one, or the source's own rate."""
    mean_think_s: float = 10.0
    """From an answer to the next turn, where a source has no times."""
    start_s: float = 0.0
    """Where in the source's windows a drawn trace begins."""
    duration_s: float | None = None
    """How long a drawn trace is; None: what is drawn has no length of its own, so it must be given."""
    skip_incomplete: bool = False
    """Leave out clients without lengths instead of refusing the source."""

    def check(self, source_format: SourceFormat) -> None:
        """Raises TraceError: a value is out of its range, or an option means nothing for this format."""
        for name, low in (("chars_per_token", 0.0), ("rate_per_s", 0.0), ("duration_s", 0.0)):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > low):
                raise TraceError(f"{_option(name)} is {value}, it must be finite and more than {low:g}")
        for name in ("mean_think_s", "start_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise TraceError(f"{_option(name)} is {getattr(self, name)}, it must be finite and at least 0")
        if self.slo_class is not None and not self.slo_class.strip():
            raise TraceError("--class is empty: name a latency class, or leave it out")
        for field in dataclasses.fields(self):
            formats = _READ_BY.get(field.name)
            if formats is not None and source_format not in formats and getattr(self, field.name) != field.default:
                known = ", ".join(sorted(each.value for each in formats))
                raise TraceError(
                    f"{_option(field.name)} says nothing about a trace of {source_format.value}, only about {known}; "
                    "leave it out, or change times with `headrace trace scale` and `cut`"
                )


def _option(name: str) -> str:
    return _OPTIONS.get(name, "--" + name.replace("_", "-"))
