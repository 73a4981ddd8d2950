"""How long one step may take, which decodes it leaves out, and how much prefill fits beside the others.

The budget is the smallest slack of the protected decodes, those that cannot be saved left aside, and of the protected
prompts that end in the step. What runs anyway may take longer than that; prefill that adds nothing to it, as below the
time of the step's copies, is free and is always filled.

Source: the smallest slack as the budget of a step and slack-rich decodes left out are those of Niyama (ASPLOS 2026) and
FairBatching (arXiv 2510.14392); the chunk is the closed inverse of the latency model.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Sequence

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
    """Nor above this: an arrival waits for one step at most."""
    long_prompt_tokens: int = 8192
    """Of prompts longer than this, one is computed in a step, unless no decode runs beside them."""


class StepBudget:
    """Of one step. First `choose_decodes`, once; then `fit` and `add` for each prefill in turn."""

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
        self._slack_s = math.inf
        """The smallest of the protected decodes that are not lost: no step is to be longer."""
        self._limit_s: float | None = None
        """What prefill may fill, once it was asked for."""
        self._fill_link = link
        """What prefill is judged beside."""
        self._num_reserved = 0
        self.stall_s = 0.0
        """What it waits for loads beside computing, expected."""
        self._has_prefill = False
        self._has_long_prompt = False
        self.budget_s = None if model is None else limits.max_s
        """What a step may take at the 95th percentile; None: there is no model."""
        self.reasons: list[str] = []
        """Why something was left out, or takes longer than the budget."""

    def choose_decodes(self, decodes: Sequence[Request], *, may_skip: bool) -> Collection[Request]:
        """Which of the ready decodes this step leaves out; the others are part of it from here.

        Sets `budget_s`. Rebases those that not even a step of the protected decodes alone can save.
        """
        model = self._model
        if model is None or not decodes:
            return ()
        self._slack_s = self._smallest_slack_s(model, decodes)
        self.budget_s = budget_s = max(self._limits.floor_s, min(self._slack_s, self._limits.max_s))
        self._features = _decode_features(decodes)
        if not may_skip or len(decodes) == 1:
            return ()
        all_s = model.p95_s(self._features, self._link)
        kept = decodes if all_s <= budget_s else self._tightest(model, decodes, budget_s, all_s)
        if len(kept) == len(decodes):
            return ()
        self._features = _decode_features(kept)
        self._explain("decode_skipped")
        return frozenset(decodes).difference(kept)

    def fit(self, request: Request, num_tokens: int, num_tokens_left: int, stall_s: float = 0.0) -> int:
        """How many tokens of a request's prefill this step takes; 0: none.

        Args:
            num_tokens: all that it has to compute, behind what is computed or found in the prefix cache.
            num_tokens_left: of the step.
            stall_s: that the step waits at least, if it takes any.
        """
        most = min(num_tokens, num_tokens_left)
        if self._model is None or most < 1:
            return max(most, 0)
        reserved, self._num_reserved = min(self._num_reserved, most), 0
        if self._has_long_prompt and self._is_long(request) and self._features.num_decodes:
            self._explain("long_prompt")
            return 0
        stall_s = max(self.stall_s, stall_s)
        limit_s = self._limit(self._model) - stall_s
        position = min(request.num_known_tokens, request.spec.num_kv_tokens) - num_tokens
        chunk = self._chunk(request, position, num_tokens, most, limit_s)
        least = min(most, self._tile.tokens)
        slack_s = self._slack_s - stall_s
        if chunk < least and limit_s < slack_s and not self._has_prefill:
            # The largest budget keeps arrivals from waiting for a step; it keeps no prompt from being computed.
            tile = self._chunk(request, position, num_tokens, least, slack_s)
            if tile > chunk:
                chunk = tile
                self._explain("least_prefill")
        if chunk < reserved:
            chunk = reserved
            self._explain("share_reserved")
        if chunk == 0:
            self._explain("no_time")
        return chunk

    def bears(self, request: Request, num_tokens: int, wait_s: float, num_parts: int) -> bool:
        """Whether a request's tokens may be computed in this step while what comes before them is still being loaded.

        The load arrives in equal parts, one after the other, and each part of the layers waits for its own: either the
        waiting hides under computing but for the first part, or computing under waiting but for the last. If so, the
        waiting is part of the step from here. Without a model nobody knows what it would hide under.

        Args:
            wait_s: until the load is expected to have arrived.
        """
        if self._model is None:
            return False
        compute_s = self._with_tokens_s(self._model, request, num_tokens)
        stall_s = max(self.stall_s, _stall_s(wait_s, compute_s, num_parts))
        if compute_s + stall_s > self._limit(self._model):
            return False
        self.stall_s = stall_s
        return True

    def wait_for(self, request: Request, num_tokens: int, wait_s: float, num_parts: int) -> None:
        """The same, whatever is due: the step waits for that load, and is longer by what does not hide."""
        compute_s = 0.0 if self._model is None else self._with_tokens_s(self._model, request, num_tokens)
        self.stall_s = max(self.stall_s, _stall_s(wait_s, compute_s, num_parts))

    def _with_tokens_s(self, model: LatencyModel, request: Request, num_tokens: int) -> float:
        return model.p95_s(_with_chunk(self._features, request, num_tokens, request.position), self._fill_link)

    def add(self, request: Request, num_tokens: int) -> None:
        """Tokens of its prefill become part of the step. Before its position moves: it says what they come behind."""
        if self._model is None:
            return
        self._features = _with_chunk(self._features, request, num_tokens, request.position)
        self._has_prefill = True
        self._has_long_prompt = self._has_long_prompt or self._is_long(request)
        if request.position + num_tokens == request.num_known_tokens:
            self._heed(self._model, request)

    def features_of(self, num_tokens: int, num_samples: int) -> StepFeatures | None:
        """The step's, where all that was to be part of it is: so many tokens and samples. None: nobody counted it."""
        features = self._features
        is_whole = features.num_rows == num_tokens and features.num_samples == num_samples
        return features if is_whole else None

    def recount(self, decodes: StepFeatures) -> None:
        """Some of the chosen decodes lack blocks, and these are part of the step: the time of the others is free."""
        if self._model is None:
            return
        self._features = decodes
        if not decodes.num_rows:
            self._slack_s = math.inf
            self.budget_s = max(self._limits.floor_s, self._limits.max_s)

    def reserve(self, tokens_floor: int) -> None:
        """A class is owed its share: the next `fit` gives at least that many tokens, whatever the budget."""
        self._num_reserved = tokens_floor

    def check(self) -> None:
        """Assert what must hold between two calls."""
        assert (self.budget_s is None) == (self._model is None)
        assert self.budget_s is None or self.budget_s <= max(self._limits.floor_s, self._limits.max_s)
        assert len(set(self.reasons)) == len(self.reasons)

    def _smallest_slack_s(self, model: LatencyModel, decodes: Sequence[Request]) -> float:
        """Of the protected decodes that a step of theirs alone can save; the others are rebased. Inf: there is none."""
        num = context = longest = 0
        due_s = math.inf
        for request in decodes:
            deadlines = request.deadlines
            if not request.is_protected or deadlines.is_lost:
                continue
            position = request.num_computed_tokens + request.num_scheduled_tokens
            num += 1
            context += position
            if position > longest:
                longest = position
            token_s = deadlines.next_s
            if request.num_pending_samples:  # that one is in flight; the next is due one later
                token_s += deadlines.tpot_s
            if token_s < due_s:
                due_s = token_s
        if not num:
            return math.inf
        alone_s = model.mean_s(StepFeatures(0, num, context + num, longest + 1, 0.0, num), self._link)
        if due_s >= self._start_s + alone_s:
            return due_s - self._start_s
        return self._rebase(decodes, self._start_s + alone_s) - self._start_s

    def _rebase(self, decodes: Sequence[Request], earliest_s: float) -> float:
        """Put off the tokens that cannot be out before; when the first of the others is due."""
        due_s = math.inf
        for request in decodes:
            if not request.is_protected or request.deadlines.is_lost:
                continue
            token_s = _due_s(request)
            if token_s >= earliest_s:
                due_s = min(due_s, token_s)
            elif not request.num_pending_samples:
                request.deadlines.rebase(earliest_s)
                self._explain("deadline_lost")
        return due_s

    def _tightest(
        self, model: LatencyModel, decodes: Sequence[Request], budget_s: float, all_s: float
    ) -> Sequence[Request]:
        """Those to keep: as many of the tightest as the budget holds, and all that cannot spare this step.

        Whoever is left out can spare this step and one with everybody after it: left out once, it is still in time.
        """
        ordered = sorted(decodes, key=_due_s)
        lengths = [request.num_computed_tokens + request.num_scheduled_tokens + 1 for request in ordered]
        contexts, longest = list(itertools.accumulate(lengths)), list(itertools.accumulate(lengths, max))

        def kept_s(num_kept: int) -> float:
            last = num_kept - 1
            return model.p95_s(StepFeatures(0, num_kept, contexts[last], longest[last], 0.0, num_kept), self._link)

        def slack_s(request: Request) -> float:
            return _due_s(request) - self._start_s

        num_kept = max(1, bisect.bisect_right(range(1, len(ordered)), budget_s, key=kept_s))
        for _ in range(MAX_ROUNDS):
            this_s = max(budget_s, kept_s(num_kept))
            num_needed = bisect.bisect_left(ordered, this_s + all_s, key=slack_s)
            if num_needed <= num_kept:
                return ordered[:num_kept]
            num_kept = num_needed
        return decodes

    def _heed(self, model: LatencyModel, request: Request) -> None:
        """Its token comes with this step: what is added from here is not to make that one late."""
        if not request.is_protected or request.is_relegated or request.deadlines.is_lost or request.max_tokens == 0:
            return
        slack_s = request.deadlines.next_s - self._start_s
        if slack_s < self._limit(model) and model.p95_s(self._features, self._link) <= slack_s:
            self._slack_s = min(self._slack_s, slack_s)
            self._limit_s = self.budget_s = max(self._limits.floor_s, slack_s)

    def _limit(self, model: LatencyModel) -> float:
        """The budget, or what the step takes without any prefill, where that is longer.

        Where copies that may be slow break the budget, prefill keeps to what they take at their median: it is not to
        make a step late that is in time more often than not.
        """
        if self._limit_s is None:
            assert self.budget_s is not None
            self._limit_s = self.budget_s
            least = self._features if self._features.num_rows else StepFeatures().with_chunk(1, 0, samples=True)
            if model.p95_s(least, self._link) > self.budget_s:
                self._fill_link = _at_median(self._link)
                self._limit_s = max(self.budget_s, model.p95_s(least, self._fill_link))
                self._explain("over_budget")
        return self._limit_s

    def _chunk(self, request: Request, position: int, num_tokens: int, most: int, limit_s: float) -> int:
        """The longest chunk of at most `most` tokens within a limit that is worth a step."""
        assert self._model is not None
        if num_tokens == 1:  # counts as a decode
            last = _with_chunk(self._features, request, 1, position)
            return int(self._model.p95_s(last, self._fill_link) <= limit_s)
        block_size = self._tile.block_size
        least = self._features.with_chunk(min(most, block_size), position, samples=True)
        if self._model.p95_s(least, self._fill_link) > limit_s:  # nothing of use fits: found out at less cost
            return 0
        chunk = self._model.max_chunk_tokens(self._features, position, most, limit_s, self._fill_link)
        if chunk == num_tokens:
            return chunk
        if chunk < block_size:
            return chunk if chunk == most else 0  # no more tokens are left in the step
        return chunk - chunk % (self._tile.tokens if chunk >= self._tile.tokens else block_size)

    def _is_long(self, request: Request) -> bool:
        return request.spec.num_prompt_tokens > self._limits.long_prompt_tokens

    def _explain(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)


def _stall_s(wait_s: float, compute_s: float, num_parts: int) -> float:
    """Of a step that computes for so long beside a load in equal parts: all hides but the first, or but the last."""
    return max(wait_s / num_parts, wait_s + compute_s / num_parts - compute_s)


def _at_median(link: LinkSnapshot) -> LinkSnapshot:
    """A link that is never slower than half of the time."""
    h2d = dataclasses.replace(link.h2d, p5_bytes_per_s=link.h2d.p50_bytes_per_s)
    return dataclasses.replace(link, h2d=h2d)


def _due_s(request: Request) -> float:
    """When the token that this step would sample is due."""
    next_s = request.deadlines.next_s
    return next_s + request.deadlines.tpot_s if request.num_pending_samples else next_s


def _decode_features(decodes: Iterable[Request]) -> StepFeatures:
    """Of a step of at least one decode."""
    positions = [request.num_computed_tokens + request.num_scheduled_tokens for request in decodes]
    num = len(positions)
    return StepFeatures(0, num, sum(positions) + num, max(positions) + 1, 0.0, num)


def _with_chunk(features: StepFeatures, request: Request, num_tokens: int, position: int) -> StepFeatures:
    """A step and the next tokens of one more request; one token that samples counts as a decode."""
    samples = position + num_tokens == request.num_known_tokens and request.spec.max_tokens > 0
    if num_tokens > 1 or not samples:
        return features.with_chunk(num_tokens, position, samples=samples)
    return dataclasses.replace(
        features,
        num_decodes=features.num_decodes + 1,
        decode_context_tokens=features.decode_context_tokens + position + 1,
        max_decode_context_tokens=max(features.max_decode_context_tokens, position + 1),
        num_samples=features.num_samples + 1,
    )
