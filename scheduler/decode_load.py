"""Whether the decodes that run bear one more: the step they share, against the tightest target among them.

A request whose tokens are due every 400 ms needs no row in every step of 50 ms. Where such rows are skipped, a step
holds on average, for each request, the tightest target / its own: the virtual batch of SCORPIO (Tang et al., 2025).
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Sequence

from scheduler.latency_model import LatencyModel
from scheduler.link import NO_LINK, LinkSnapshot
from scheduler.request import Request
from scheduler.step_features import StepFeatures

PREFILL_RESERVE = 0.1
"""Share of the tightest target that decodes leave to prompts: without it, nobody would ever start."""


UNPROMISED_SHARE = 0.5
"""Of the room that a wanted pace leaves beside a single decode: what classes without promises may start to fill."""


class VirtualBatch:
    """Sums over requests that decode, from which a step of them follows for any target."""

    __slots__ = ("_context_tokens", "_context_tokens_per_s", "_longest_tokens", "_num_decodes", "_rows_per_s")

    def __init__(self) -> None:
        self._num_decodes = 0
        self._context_tokens = 0
        self._longest_tokens = 0
        self._rows_per_s = 0.0
        self._context_tokens_per_s = 0.0

    def add(self, tpot_s: float, context_tokens: int) -> None:
        """One request more: a token each `tpot_s`, with so many keys to read for it."""
        self._num_decodes += 1
        self._context_tokens += context_tokens
        self._rows_per_s += 1.0 / tpot_s
        self._context_tokens_per_s += context_tokens / tpot_s
        if context_tokens > self._longest_tokens:
            self._longest_tokens = context_tokens

    def add_all(self, targets_s: Sequence[float], contexts: Sequence[int]) -> None:
        """The same for many, at less cost each."""
        self._num_decodes += len(targets_s)
        self._context_tokens += sum(contexts)
        self._longest_tokens = max(self._longest_tokens, max(contexts, default=0))
        self._rows_per_s += sum([1.0 / tpot_s for tpot_s in targets_s])
        self._context_tokens_per_s += sum(map(operator.truediv, contexts, targets_s))

    def features(self, tightest_s: float, *, skips: bool) -> StepFeatures:
        """A step of them on average.

        Args:
            tightest_s: the smallest target among them; infinite: none counts, and each has a row.
            skips: rows that are not due yet are left out.
        """
        rows, context = float(self._num_decodes), float(self._context_tokens)
        if skips and tightest_s < math.inf:
            rows = min(rows, self._rows_per_s * tightest_s)
            context = min(context, self._context_tokens_per_s * tightest_s)
        # Rounded up, but for what summing adds to a whole number.
        num_decodes = math.ceil(rows - 1e-6)
        return StepFeatures(0, num_decodes, math.ceil(context - 1e-6), self._longest_tokens, 0.0, num_decodes)


class DecodeLoad:
    """Judges by a latency model, which it only reads, and by the link that it was shown last."""

    def __init__(self, model: LatencyModel, *, skips: bool = True) -> None:
        """
        Args:
            skips: the policy leaves out rows that are not due yet.
        """
        self._model = model
        self._skips = skips
        self._link = NO_LINK
        self._least_s: float | None = None
        self.wanted_s = math.inf
        """The tightest pace that classes with promises were asked for of late, whether one of them runs or not."""

    def observe_link(self, link: LinkSnapshot) -> None:
        """What is judged by from here; each step begins with it."""
        self._link = link
        self._least_s = None

    @property
    def least_s(self) -> float:
        """Expected step of a single decode: a tighter target than this bounds nothing, whoever runs."""
        if self._least_s is None:
            self._least_s = self._model.mean_s(StepFeatures(0, 1, 1, 1, 0.0, 1), self._link)
        return self._least_s

    def step_s(self, batch: VirtualBatch, tightest_s: float) -> float:
        """Expected step of decodes, the link's floor included: a pace is the mean of many steps."""
        return self._model.mean_s(batch.features(tightest_s, skips=self._skips), self._link)

    def rows(self, batch: VirtualBatch, budget_s: float) -> StepFeatures:
        """The decodes of a step with prefill: all of them, for rows are left out only where they do not fit."""
        everybody = batch.features(budget_s, skips=False)
        if not self._skips or self._model.p95_s(everybody, self._link) <= budget_s * (1.0 - PREFILL_RESERVE):
            return everybody
        return batch.features(budget_s, skips=True)

    def allows(self, running: Iterable[Request], newcomer: Request) -> bool:
        """As `RunningDecodes.allows`, for one newcomer."""
        return RunningDecodes(self, running).allows(newcomer)


class RunningDecodes:
    """What runs within one step, summed up once for all that would start in it. O(running) to make, O(ranks) to ask."""

    def __init__(self, load: DecodeLoad, running: Iterable[Request]) -> None:
        self._load = load
        self._batch = VirtualBatch()
        self._tightest_s: dict[int, float] = {}
        """By rank, of protected requests that are not lost."""
        self.add(running)

    def add(self, requests: Iterable[Request]) -> None:
        """They run."""
        tightest_s, least_s = self._tightest_s, self._load.least_s
        targets_s: list[float] = []
        contexts: list[int] = []
        for request in requests:
            deadlines = request.deadlines
            tpot_s = deadlines.tpot_s
            targets_s.append(tpot_s)
            contexts.append(request.num_prompt_tokens + request.num_output_tokens)
            if request.is_protected and not deadlines.is_lost and tpot_s >= least_s:
                rank = request.rank
                if rank not in tightest_s or tpot_s < tightest_s[rank]:
                    tightest_s[rank] = tpot_s
        self._batch.add_all(targets_s, contexts)

    def allows(self, newcomer: Request) -> bool:
        """Whether the protected requests of its class and of higher ones still get their tokens in time beside it."""
        bounds = [tpot_s for rank, tpot_s in self._tightest_s.items() if rank <= newcomer.rank]
        wanted_s = math.inf if newcomer.slo_class.is_guaranteed else self._load.wanted_s
        if not bounds and wanted_s == math.inf:
            return True
        batch = copy.copy(self._batch)
        batch.add(newcomer.deadlines.tpot_s, newcomer.num_tokens)
        if wanted_s < math.inf and not self._leaves_room(batch, wanted_s):
            return False
        tightest_s = min(bounds, default=math.inf)
        return not bounds or self._load.step_s(batch, tightest_s) <= tightest_s * (1.0 - PREFILL_RESERVE)

    def _leaves_room(self, batch: VirtualBatch, wanted_s: float) -> bool:
        """Whether those who were promised a pace find room beside a batch: else all that is free would be taken before
        they come, again and again. A pace that not even a single decode keeps needs no room."""
        least_s = self._load.least_s
        room_s = wanted_s * (1.0 - PREFILL_RESERVE) - least_s
        return room_s <= 0.0 or self._load.step_s(batch, wanted_s) - least_s <= UNPROMISED_SHARE * room_s
