"""What prompts cost beside given decodes: by token and by pair of a query and a key, from the latency model.

In a linear model the time of a prompt does not depend on how it is cut: its tokens and pairs cost what they cost, and
each step adds what it costs anyhow. With steps of B seconds of which the decodes take F, that stretches the time of
prompts by B / (B - F).
"""

from __future__ import annotations

import dataclasses

from scheduler.chunk_tile import ChunkTile
from scheduler.config import SchedulerConfig
from scheduler.demand_curve import WorkCost
from scheduler.latency_model import LatencyModel
from scheduler.link import LinkSnapshot
from scheduler.step_features import StepFeatures

MAX_STRETCH = 20.0
MIN_IDLE_SHARE = 0.05
"""Of a step's budget, left by the decodes: with less, prompts are not computed in any time worth a promise."""
NUM_PIECES = 8
"""A long prompt's time alone is summed over so many stretches of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillQuote:
    """Expected times of steps that are filled as they would be: to their budget at the 95th percentile.

    A promise rests on the sum of many steps, which is near their mean; the margin of promises is for the rest.
    """

    cost: WorkCost
    least_s: float
    """Of a step without prompts."""
    last_step_s: float
    """Longest step that a prompt may have to wait for."""


class PrefillCost:
    """Quotes by a latency model that it only reads."""

    def __init__(self, model: LatencyModel, config: SchedulerConfig, max_model_len: int) -> None:
        self._model = model
        self._config = config
        self._far_tokens = max(max_model_len, 1)
        self._tile = ChunkTile(model, config.block_size, config.max_num_batched_tokens)

    def beside(
        self, decodes: StepFeatures, budget_s: float, num_tokens: int, link: LinkSnapshot
    ) -> PrefillQuote | None:
        """Of prompts that share their steps with `decodes`; None: no time is left for them.

        Args:
            budget_s: that steps keep to.
            num_tokens: of all prompts that there are: no step holds more.
        """
        model = self._model
        most = self._config.max_num_batched_tokens - decodes.num_decodes
        least = decodes if decodes.num_rows else decodes.with_chunk(1, 0, samples=False)
        least_s = model.mean_s(least, link)
        budget_s = max(budget_s, model.p95_s(least, link))  # what hides under the copies of a step is free
        idle_share = 1.0 - least_s / budget_s
        if most < 1 or (idle_share < MIN_IDLE_SHARE and not link.num_streamed_layers):
            return None
        # Where none fits at the 95th percentile, some does once steps that took their mean have left time.
        fits = model.max_chunk_tokens(decodes, 0, most, budget_s, link)
        chunk = self._rounded(fits) or min(most, self._config.block_size)
        step_s = model.mean_s(decodes.with_chunk(chunk, 0, samples=True), link)
        far_s = model.mean_s(decodes.with_chunk(chunk, self._far_tokens, samples=True), link)
        stretch = 1.0
        if step_s > budget_s or fits < chunk:
            stretch = max((step_s - least_s) / (max(idle_share, MIN_IDLE_SHARE) * step_s), 1.0)
        s_per_pair = (far_s - step_s) / (chunk * self._far_tokens)
        if far_s > budget_s:
            # Behind a long prefix a step may hold one tile where almost two fit: half of its time for prompts.
            filled_s = (step_s - least_s) * (0.5 if chunk >= self._tile.tokens else 1.0)
            s_per_pair *= min((least_s + filled_s) / max(filled_s, step_s / MAX_STRETCH), MAX_STRETCH)
        s_per_token = max(step_s / chunk - s_per_pair * chunk / 2, 0.0)
        longest_s = max(self._config.max_step_s, budget_s)
        last = max(model.max_chunk_tokens(decodes, 0, min(num_tokens, most), longest_s, link), 1)
        last_step_s = model.mean_s(decodes.with_chunk(last, 0, samples=True), link)
        decode_share = 0.0 if link.num_streamed_layers or not decodes.num_rows else min(least_s / step_s, 1.0)
        return PrefillQuote(WorkCost(s_per_token, s_per_pair, decode_share).stretched(stretch), least_s, last_step_s)

    def alone_s(self, start: int, end: int, link: LinkSnapshot) -> float:
        """Expected time of tokens start..end-1 of one prompt with nothing beside it, rather too short than too long."""
        model, empty, most = self._model, StepFeatures(), self._config.max_num_batched_tokens
        longest_s = max(self._config.max_step_s, model.p95_s(empty.with_chunk(1, start, samples=True), link))
        chunk = model.max_chunk_tokens(empty, start, min(end - start, most), longest_s, link)
        if chunk >= end - start:
            return model.mean_s(empty.with_chunk(end - start, start, samples=True), link)
        # The last chunk on its own; those before it by pieces, as if each piece were one long chunk of its middle.
        num_whole = (end - start - 1) // max(chunk, 1)
        last = end - start - num_whole * chunk
        total_s = model.mean_s(empty.with_chunk(last, end - last, samples=True), link)
        num_pieces = min(NUM_PIECES, num_whole)
        piece = (end - last - start) / num_pieces
        for index in range(num_pieces):
            prefix = start + max(int((index + 0.5) * piece - chunk / 2), 0)
            chunk = max(model.max_chunk_tokens(empty, prefix, most, longest_s, link), 1)
            total_s += piece * model.mean_s(empty.with_chunk(chunk, prefix, samples=False), link) / chunk
        return total_s

    def _rounded(self, chunk: int) -> int:
        """As steps are put together: down to tiles, else to blocks."""
        unit = self._tile.tokens if chunk >= self._tile.tokens else self._config.block_size
        return chunk - chunk % unit
