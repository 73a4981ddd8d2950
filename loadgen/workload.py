"""What the requests of a load test ask: the same for the same seed, whatever the server answers."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator

from loadgen.arrivals import arrival_offsets_s
from loadgen.class_mix import ClassMix
from loadgen.config import BenchConfig
from loadgen.words import WORDS

_NUM_HEAD_WORDS = 3
"""Words at the head of a prompt that no other prompt of the run begins with."""
_HEAD_SPACE = len(WORDS) ** _NUM_HEAD_WORDS


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request as planned.

    A later turn of a conversation is due when the answer to the turn before it has ended and the user has thought:
    its intended send time is that moment, so that an answer that was slow is counted once, not in every turn after it.
    """

    index: int
    slo_class: str
    offset_s: float | None
    """When it is due, from the start of the run; None in a closed loop: when a client is free."""
    prompt: str
    num_prompt_tokens: int
    """As planned, history included; the server's usage says what it really was."""
    num_output_tokens: int
    trace_id: int | None = None
    """What two runs are paired by: the row of the trace, from 0, else `index`."""
    session: str | None = None
    """The conversation it is a turn of; None: it stands alone."""
    after: int | None = None
    """`trace_id` of the turn whose answer must be there first; None: it waits for none."""
    think_s: float | None = None
    """From that answer to this request; None: `offset_s` is when it is due at the earliest."""
    history: tuple[tuple[str, str], ...] = ()
    """Turns before it, each what was asked and what was answered. Known when it is sent."""
    cancel_after_tokens: int | None = None
    """Its client leaves once it has so many tokens; None: it stays."""


class Workload:
    """The requests of one run, in the order in which they are sent.

    Arrivals, classes and each prompt have random streams of their own: a change of one leaves the others alone.
    """

    def __init__(self, config: BenchConfig, mix: ClassMix) -> None:
        self._config = config
        self._mix = mix
        rng = random.Random(f"{config.seed}/prefix")
        self._shared_prefix = [rng.choice(WORDS) for _ in range(config.shared_prefix_tokens)]
        self._head_offset = rng.randrange(_HEAD_SPACE)

    def requests(self) -> Iterator[PlannedRequest]:
        """The requests; an open loop's end with its number or its duration, a closed one's with its number."""
        config = self._config
        class_rng = random.Random(f"{config.seed}/classes")
        for index, offset_s in zip(self._indices(), self._offsets_s(), strict=False):
            if offset_s is not None and config.duration_s is not None and offset_s >= config.duration_s:
                return
            yield self._plan(index, offset_s, class_rng)

    def _indices(self) -> Iterator[int]:
        limit = self._config.max_requests
        return iter(range(limit)) if limit is not None else itertools.count()

    def _offsets_s(self) -> Iterator[float | None]:
        config = self._config
        if not config.is_open_loop:
            return itertools.repeat(None)
        assert config.arrival_kind in ("poisson", "constant"), config.arrival_kind
        return arrival_offsets_s(config.arrival_kind, config.rate_per_s, random.Random(f"{config.seed}/arrivals"))

    def _plan(self, index: int, offset_s: float | None, class_rng: random.Random) -> PlannedRequest:
        rng = random.Random(f"{self._config.seed}/request/{index}")
        slo_class = self._mix.draw(class_rng)
        num_prompt_tokens = slo_class.prompt_tokens.draw(rng)
        num_output_tokens = slo_class.output_tokens.draw(rng)
        own = self._head(index) + [rng.choice(WORDS) for _ in range(num_prompt_tokens - _NUM_HEAD_WORDS)]
        words = self._shared_prefix + own[:num_prompt_tokens]
        return PlannedRequest(index, slo_class.name, offset_s, " ".join(words), len(words), num_output_tokens, index)

    def _head(self, index: int) -> list[str]:
        """Words that tell `index` apart: its digits, so that prompts differ from their first word on where they can."""
        number = (index + self._head_offset) % _HEAD_SPACE
        head = []
        for _ in range(_NUM_HEAD_WORDS):
            number, digit = divmod(number, len(WORDS))
            head.append(WORDS[digit])
        return head
