"""The numbers of the latency model, as fitted to a machine: frozen values that an event log can hold."""

from __future__ import annotations

import dataclasses
import enum
import math

from scheduler.link import LinkSnapshot
from scheduler.ramp import Ramp
from scheduler.step_features import StepFeatures


class StepKind(enum.IntEnum):
    """What a step mostly does; each kind has its own correction. Ascending in the tokens of prefill."""

    DECODE = 0
    MIXED = 1
    PREFILL = 2


@dataclasses.dataclass(frozen=True, slots=True)
class LatencyCoefficients:
    """T = max(T_compute, T_link) + sync. Every coefficient is at least 0, and so T grows with every count.

    Raises:
        ValueError: a coefficient is negative or not finite, a factor below 1, or the skew outweighs the context.
    """

    rows: Ramp
    """All layers by rows: on a processor the ramp is what graph buckets are on an accelerator."""
    samples: Ramp
    """Head and sampling by sampled rows; a step that samples nothing pays nothing."""
    s_per_prefill_token: float = 0.0
    s_per_decode: float = 0.0
    s_per_decode_context_token: float = 0.0
    s_per_prefill_pair: float = 0.0
    s_per_skew_token: float = 0.0
    sync_s: float = 0.0
    """What no computation and no copy hides: scheduler, batch, messages."""
    decode_slowdown: float = 1.0
    """Factor on the layers of a decode step while weights are copied."""
    prefill_slowdown: float = 1.0
    """The same for any other step."""
    streamed_layer_bytes: int = 0
    """Copied in each step for each streamed layer."""
    prefill_step_tokens: int = 64
    """Tokens of prefill from beyond which a step is of kind PREFILL."""
    p95_factors: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """By kind: 95th percentile of measured over predicted, until steps of this engine say more."""

    def __post_init__(self) -> None:
        for name in (
            "s_per_prefill_token", "s_per_decode", "s_per_decode_context_token", "s_per_prefill_pair",
            "s_per_skew_token", "sync_s", "streamed_layer_bytes",
        ):  # fmt: skip
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; a time that only grows needs it at 0 or above")
        for factor in (self.decode_slowdown, self.prefill_slowdown, *self.p95_factors):
            if not 1.0 <= factor < math.inf:
                raise ValueError(f"a factor of the latency model is {factor}; it must be at least 1")
        if any(knot != int(knot) for knot in self.rows.knots):
            raise ValueError(f"the knots {self.rows.knots} of the rows are not whole: a step has no half row")
        if self.prefill_step_tokens < 1:
            raise ValueError(f"prefill_step_tokens is {self.prefill_step_tokens}, it must be at least 1")
        # A longer context that is not the longest lowers the skew; of two decodes, by half of what it grows.
        if self.s_per_skew_token > 2 * self.s_per_decode_context_token:
            raise ValueError(
                f"s_per_skew_token is {self.s_per_skew_token}: above twice s_per_decode_context_token "
                f"({self.s_per_decode_context_token}) a longer context could make a step shorter"
            )

    def kind_of(self, prefill_tokens: int) -> StepKind:
        """By tokens of prefill alone, so that more of anything never leads to a lower kind."""
        if prefill_tokens == 0:
            return StepKind.DECODE
        return StepKind.MIXED if prefill_tokens <= self.prefill_step_tokens else StepKind.PREFILL

    def slowdown(self, kind: StepKind, link: LinkSnapshot) -> float:
        """Factor on the layers for what is copied meanwhile."""
        if not link.num_streamed_layers:
            return 1.0
        return self.decode_slowdown if kind is StepKind.DECODE else self.prefill_slowdown

    def link_s(self, link: LinkSnapshot, *, is_slow: bool = False) -> float:
        """Copies of one step; 0 where no bandwidth is known.

        Args:
            is_slow: at the 5th percentile of the bandwidth instead of the median.
        """
        bytes_per_s = link.h2d.p50_bytes_per_s
        if is_slow and link.h2d.p5_bytes_per_s > 0.0:
            bytes_per_s = min(bytes_per_s, link.h2d.p5_bytes_per_s)
        if not link.num_streamed_layers:
            return 0.0  # no step waits for a load but those that were planned with it
        num_bytes = link.num_streamed_layers * self.streamed_layer_bytes + link.h2d.queued_kv_load_bytes
        return num_bytes / bytes_per_s if bytes_per_s > 0.0 else 0.0

    def layers_s(self, features: StepFeatures) -> float:
        """All layers, nothing being copied."""
        return (
            self.rows(features.num_rows)
            + self.s_per_prefill_token * features.prefill_tokens
            + self.s_per_decode * features.num_decodes
            + self.s_per_decode_context_token * features.decode_context_tokens
            + self.s_per_prefill_pair * features.prefill_pairs
            + self.s_per_skew_token * features.skew_tokens
        )

    def head_s(self, num_samples: int) -> float:
        return self.samples(num_samples) if num_samples else 0.0

    def step_s(self, features: StepFeatures, kind: StepKind, link: LinkSnapshot, link_s: float) -> float:
        """One step as a step of `kind`, without correction.

        Args:
            link_s: of its copies.
        """
        compute_s = self.layers_s(features) * self.slowdown(kind, link) + self.head_s(features.num_samples)
        return max(compute_s, link_s) + self.sync_s
