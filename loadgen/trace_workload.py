"""The requests of a recorded load: its lengths, times, conversations and shared prefixes, in words of our own."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from loadgen.arrivals import arrival_offsets_s
from loadgen.calibration import Calibration
from loadgen.cancellations import Cancellations
from loadgen.class_mix import ClassMix
from loadgen.config import BenchConfig, BenchError
from loadgen.row_limit import RowLimit
from loadgen.traces.trace_file import Trace
from loadgen.traces.trace_request import TraceRequest
from loadgen.words import WordPool
from loadgen.workload import PlannedRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """What is replayed of a trace, for the report."""

    path: str
    sha256: str
    """Of the file itself."""
    num_rows: int
    num_too_long: int
    """Rows longer than the model reads, and turns after a dropped one."""
    too_long: str
    """What became of them: fail (there are none), drop or clip."""
    max_model_len: int | None
    """None: nothing is known of the model's length, and no row was taken for too long."""
    trace_rate_per_s: float | None
    """Of the trace itself: one over its mean gap."""
    time_factor: float | None
    """What its times were multiplied by; None: they are not used."""


class TraceWorkload:
    """The rows of a trace as requests.

    A row's prompt is the text of its blocks, an equal block being equal text, so that what was shared in the trace is
    shared here; without blocks it is words of its own, after the history of its conversation. A turn that waits for
    an answer is due when that has ended and the trace's time to think is over, which is not scaled.
    """

    def __init__(
        self,
        config: BenchConfig,
        mix: ClassMix,
        trace: Trace,
        calibration: Calibration,
        max_model_len: int | None,
        sha256: str,
    ) -> None:
        """
        Args:
            mix: with the trace's labels (`ClassMix.with_labels`).
            max_model_len: tokens of prompt and answer that the model reads; None: not known.
            sha256: of the file that is replayed. Its sidecar tells of the source's, which many pieces share.

        Raises:
            BenchError: rows are too long and are to fail; or the trace has no rate to scale.
        """
        self._config = config
        self._mix = mix
        self._calibration = calibration
        self._cancellations = Cancellations(config.cancel_share, config.seed)
        limit = RowLimit(max_model_len, config.too_long)
        self._rows: Mapping[int, TraceRequest] = limit.apply(trace.requests)
        self._followers = _followers(self._rows)
        salt = f"/{config.prompt_salt}" if config.prompt_salt else ""
        self._pool = WordPool(f"{config.seed}/trace{salt}")
        rate_per_s = _rate_per_s(trace.requests)
        if config.arrival_kind == "trace" and config.rate is not None and rate_per_s is None and config.is_open_loop:
            raise BenchError(f"{config.trace_path} has no time between its requests that --rate could scale")
        scales = rate_per_s is not None and config.rate is not None
        self._time_factor = rate_per_s / config.rate if scales and rate_per_s and config.rate else 1.0
        uses_times = config.is_open_loop and config.arrival_kind == "trace"
        self.replay = Replay(
            path=config.trace_path or "",
            sha256=sha256,
            num_rows=len(trace.requests),
            num_too_long=limit.num_too_long,
            too_long=config.too_long,
            max_model_len=max_model_len,
            trace_rate_per_s=rate_per_s,
            time_factor=self._time_factor if uses_times else None,
        )

    def requests(self) -> Iterator[PlannedRequest]:
        """The rows in the order of their times, each with the turns that wait for it; bounded as the options say."""
        config = self._config
        drawn = random.Random(f"{config.seed}/classes")
        indices = itertools.count() if config.max_requests is None else iter(range(config.max_requests))
        first = {row_id: row for row_id, row in self._rows.items() if row.after is None}
        for (row_id, row), offset_s in zip(first.items(), self._offsets_s(first), strict=False):
            if offset_s is not None and config.duration_s is not None and offset_s >= config.duration_s:
                return
            slo_class = self._mix.draw(drawn).name if row.slo_class is None else row.slo_class
            for turn_id in self._conversation(row_id):
                index = next(indices, None)
                if index is None:
                    return
                yield self._plan(index, turn_id, offset_s if turn_id == row_id else None, slo_class)

    def _offsets_s(self, first: Mapping[int, TraceRequest]) -> Iterator[float | None]:
        config = self._config
        if not config.is_open_loop:
            return itertools.repeat(None)
        kind = config.arrival_kind
        if kind == "trace":
            return (row.t_s * self._time_factor for row in first.values())
        # The rate is of requests: as many conversations begin as give it.
        rate_per_s = config.rate_per_s * len(first) / len(self._rows)
        return arrival_offsets_s(kind, rate_per_s, random.Random(f"{config.seed}/arrivals"), config.burstiness**-0.5)

    def _conversation(self, row_id: int) -> Iterator[int]:
        """The row, and all that wait for it, depth first; without recursion, since there may be thousands."""
        waiting = [row_id]
        while waiting:
            turn_id = waiting.pop()
            yield turn_id
            waiting += reversed(self._followers.get(turn_id, ()))

    def _plan(self, index: int, row_id: int, offset_s: float | None, slo_class: str) -> PlannedRequest:
        row = self._rows[row_id]
        is_turn = row.after is not None
        if is_turn and self._config.is_open_loop and self._config.arrival_kind == "trace":
            offset_s = row.t_s * self._time_factor
        return PlannedRequest(
            index,
            slo_class if row.slo_class is None else row.slo_class,
            offset_s,
            self._prompt(row_id, row),
            row.in_tokens,
            row.out_tokens,
            trace_id=row_id,
            session=row.session or (str(row_id) if row_id in self._followers or is_turn else None),
            after=row.after,
            think_s=row.think_s,
            is_whole=row.prefix is not None,
            cancel_after_tokens=self._cancellations.draw(row_id, row.out_tokens),
        )

    def _prompt(self, row_id: int, row: TraceRequest) -> str:
        if row.text is not None:
            return row.text
        num_overhead_tokens = self._calibration.overhead_tokens
        if row.prefix is not None and row.block is not None:
            return self._blocks_text(row.prefix, row.block, row.in_tokens - num_overhead_tokens)
        before = None if row.after is None else self._rows[row.after]
        num_own_tokens = row.in_tokens - num_overhead_tokens
        if before is not None:
            num_own_tokens = row.in_tokens - before.in_tokens - before.out_tokens
        # Odd numbers are rows, even ones blocks: no two of them begin alike.
        return self._pool.text(2 * row_id + 1, max(self._calibration.words_for(num_own_tokens), 1))

    def _blocks_text(self, blocks: Sequence[int], block_tokens: int, num_tokens: int) -> str:
        """The block at a place has the same words wherever it is, and rounding does not add up over the blocks."""
        num_words = max(self._calibration.words_for(num_tokens), 1)
        parts: list[str] = []
        start = 0
        for place, block in enumerate(blocks, start=1):
            end = self._calibration.words_for(place * block_tokens)
            if start < num_words and end > start:
                parts.append(self._pool.text(2 * block, min(end, num_words) - start))
            start = end
        return " ".join(parts)


def _followers(rows: Mapping[int, TraceRequest]) -> dict[int, list[int]]:
    followers: dict[int, list[int]] = {}
    for row_id, row in rows.items():
        if row.after is not None:
            followers.setdefault(row.after, []).append(row_id)
    return followers


def _rate_per_s(rows: Sequence[TraceRequest]) -> float | None:
    span_s = rows[-1].t_s - rows[0].t_s
    return (len(rows) - 1) / span_s if span_s > 0.0 else None
