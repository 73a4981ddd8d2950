"""How long one step may take, which decodes it leaves out, and how much prefill fits beside the others.

The budget is the smallest slack of the protected decodes. What must run anyway may take longer than that; prefill that
adds nothing to it, as below the time of the step's copies, is free and is always filled.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Collection, Sequence

from scheduler.chunk_tile import ChunkTile
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.request import Request
from scheduler.step_features import StepFeatures

MAX_ROUNDS = 8
"""Of looking for decodes to leave out; after so many, none is."""


@dataclasses.dataclass(frozen=True, slots=True)
class BudgetLimits:
    """What bounds the time budget of a step, whatever is due."""

    floor_s: float = 0.0
    """The budget is never below this."""
    max_s: float = 0.2
    """Nor above this: an arrival waits for a step at most."""
    long_prompt_tokens: int = 8192
    """Of prompts longer than this, one is computed in a step, unless nothing else runs."""


class StepBudget:
    """Of one step. First `choose_decodes`, once; then `fit` and `add` for each prefill."""

    def __init__(
        self, model: LatencyModel | None, link: LinkSnapshot, start_s: float, limits: BudgetLimits, tile: ChunkTile
    ) -> None:
        """
        Args:
            model: None: nothing is predicted, and tokens alone bound the step.
            start_s: when the step is expected to start: now, or the end of the step in flight.
        """
        self._model = model
        self._link = link
        self._start_s = start_s
        self._limits = limits
        self._tile = tile
        self._features = StepFeatures()
        self._counted: set[Request] = set()
        self._bound_s = math.inf
        """Smallest slack of the protected decodes that are not lost."""
        self._limit_s: float | None = None
        self._num_reserved = 0
        self._has_long_prompt = False
        self._fitted: tuple[Request, int] | None = None
        self.budget_s = None if model is None else limits.max_s
        """What a step may take at the 95th percentile; None: there is no model."""
        self.reasons: list[str] = []

    def choose_decodes(self, decodes: Sequence[Request], *, may_skip: bool) -> Collection[Request]:
        """Which of the ready decodes this step leaves out; the others are counted as part of it.

        Sets `budget_s`. Rebases those that not even a step of the protected decodes alone could save.
        """
        if self._model is None or not decodes:
            return ()
        num = context = longest = 0
        due_s = math.inf
        for request in decodes:
            deadlines = request.deadlines
            if request.is_protected and not deadlines.is_lost:
                length = request.num_computed_tokens + request.num_scheduled_tokens + 1
                num += 1
                context += length
                if length > longest:
                    longest = length
                token_s = deadlines.next_s + request.num_pending_samples * deadlines.tpot_s
                if token_s < due_s:
                    due_s = token_s
        if num:
            alone_s = self._model.mean_s(StepFeatures(0, num, context, longest, 0.0, num), self._link)
            if due_s - self._start_s < alone_s:
                due_s = self._rebase(decodes, self._start_s + alone_s)
            self._bound_s = due_s - self._start_s
        self.budget_s = max(self._limits.floor_s, min(self._bound_s, self._limits.max_s))
        features = _decode_features(decodes)
        skipped: Sequence[Request] = ()
        if may_skip and len(decodes) > 1 and (all_s := self._model.p95_s(features, self._link)) > self.budget_s:
            skipped = self._loosest(decodes, all_s)
        self._counted = set(decodes)
        if skipped:
            self._counted.difference_update(skipped)
            features = _decode_features(self._counted)
            self._explain("decode_skipped")
        self._features = features
        return skipped

    def fit(self, request: Request, num_tokens: int, num_tokens_left: int) -> int:
        """How many tokens of a request's prefill this step takes; 0: none.

        Args:
            num_tokens: all that it has to compute, from behind what is computed or found in the prefix cache.
            num_tokens_left: of the step.
        """
        most = min(num_tokens, num_tokens_left)
        if self._model is None or most < 1:
            return max(most, 0)
        is_long = request.spec.num_prompt_tokens > self._limits.long_prompt_tokens
        if is_long and self._has_long_prompt and self._features.num_decodes:
            self._explain("long_prompt")
            return 0
        end = min(request.num_known_tokens, request.spec.num_kv_tokens)
        prefix = end - num_tokens
        self._fitted = request, prefix
        chunk = self._rounded(self._longest(prefix, most, self._limit()), num_tokens, num_tokens_left)
        if chunk < self._tile.tokens and not self._features.prefill_tokens and self._bound_s > self._limit():
            # The largest budget keeps arrivals from waiting; it does not keep prompts from being computed.
            small = self._longest(prefix, min(most, self._tile.tokens), self._bound_s)
            chunk = max(chunk, self._rounded(small, num_tokens, num_tokens_left))
        floor, self._num_reserved = min(self._num_reserved, most), 0
        if floor > chunk:
            self._explain("share")
            return floor
        if not chunk:
            self._explain("no_time")
        return chunk

    def add(self, request: Request, num_tokens: int) -> None:
        """It was scheduled. Of no effect on decodes that `choose_decodes` counted."""
        if self._model is None or request in self._counted:
            return
        prefix = request.position
        if self._fitted is not None and self._fitted[0] is request:
            prefix = self._fitted[1]
        samples = prefix + num_tokens == request.num_known_tokens and request.spec.max_tokens > 0
        self._features = self._features.with_chunk(num_tokens, prefix, samples=samples)
        if request.spec.num_prompt_tokens > self._limits.long_prompt_tokens:
            self._has_long_prompt = True

    def reserve(self, tokens_floor: int) -> None:
        """A class is owed its share: the next `fit` gives at least so many tokens, whatever the budget."""
        self._num_reserved = tokens_floor

    def _limit(self) -> float:
        """What prefill may fill: the budget, or the time of what runs anyway."""
        assert self._model is not None and self.budget_s is not None
        if self._limit_s is None:
            least = self._features if self._features.num_rows else StepFeatures().with_chunk(1, 0, samples=False)
            self._limit_s = max(self.budget_s, self._model.p95_s(least, self._link))
        return self._limit_s

    def _longest(self, prefix: int, max_tokens: int, budget_s: float) -> int:
        assert self._model is not None
        return self._model.max_chunk_tokens(self._features, prefix, max_tokens, budget_s, self._link)

    def _rounded(self, chunk: int, num_tokens: int, num_tokens_left: int) -> int:
        """Down to tiles, else to blocks; the last part, and what tokens alone bound to less than a block, stay."""
        if chunk >= num_tokens:
            return num_tokens
        block_size = self._tile.block_size
        if chunk >= self._tile.tokens:
            return chunk - chunk % self._tile.tokens
        if chunk >= block_size:
            return chunk - chunk % block_size
        return chunk if chunk == num_tokens_left else 0

    def _rebase(self, decodes: Sequence[Request], earliest_s: float) -> float:
        """Put off what cannot be saved; when the first of the others is due."""
        due_s = math.inf
        for request in decodes:
            deadlines = request.deadlines
            if not request.is_protected or deadlines.is_lost:
                continue
            token_s = deadlines.next_s + request.num_pending_samples * deadlines.tpot_s
            if token_s >= earliest_s:
                due_s = min(due_s, token_s)
            elif not request.num_pending_samples:
                deadlines.rebase(earliest_s)
        self._explain("lost")
        return due_s

    def _loosest(self, decodes: Sequence[Request], all_s: float) -> Sequence[Request]:
        """The fewest of the loosest decodes without which the step keeps its budget, as far as each can spare it.

        Whoever is left out still makes the step after this one, even if that one takes everybody along.
        """
        assert self._model is not None and self.budget_s is not None
        ordered = sorted(decodes, key=_due_s)
        slacks = [_due_s(request) - self._start_s for request in ordered]

        def kept_s(num_kept: int) -> float:
            return model.p95_s(_decode_features(ordered[:num_kept]), link)

        model, link = self._model, self._link
        # Never the tightest: the first stays.
        num_kept = bisect.bisect_right(range(1, len(ordered)), self.budget_s, key=kept_s) or 1
        for _ in range(MAX_ROUNDS):
            this_s = max(self.budget_s, kept_s(num_kept))
            least = bisect.bisect_left(slacks, this_s + all_s)
            if least <= num_kept:
                return ordered[num_kept:]
            num_kept = least
            if num_kept == len(ordered):
                break
        return ()

    def _explain(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def _due_s(request: Request) -> float:
    """When the token that this step would sample is due."""
    deadlines = request.deadlines
    return deadlines.next_s + request.num_pending_samples * deadlines.tpot_s


def _decode_features(decodes: Collection[Request]) -> StepFeatures:
    """Of a step of these decodes alone, in one pass."""
    lengths = [request.num_computed_tokens + request.num_scheduled_tokens for request in decodes]
    num = len(lengths)
    return StepFeatures(0, num, sum(lengths) + num, max(lengths) + 1 if num else 0, 0.0, num)
