"""What the requests of a load test ask: the same for the same seed, whatever the server answers."""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import random
from collections.abc import Iterator

from loadgen.arrivals import arrival_offsets_s
from loadgen.calibration import Calibration
from loadgen.cancellations import Cancellations
from loadgen.class_mix import Arrivals, ClassMix, ClassShare
from loadgen.config import BenchConfig
from loadgen.words import NUM_HEAD_WORDS, WORDS, head_words


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
    is_whole: bool = False
    """The prompt holds the turns before it already, as blocks of a trace do."""
    history: tuple[tuple[str, str], ...] = ()
    """Turns before it, each what was asked and what was answered. Known when it is sent."""
    cancel_after_tokens: int | None = None
    """Its client leaves once it has so many tokens; None: it stays."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Draw:
    """Names the random streams of one request."""

    slo_class: str | None
    """None: numbers are those of the whole run, else of the class."""
    number: int

    @property
    def key(self) -> str:
        return str(self.number) if self.slo_class is None else f"{self.slo_class}/{self.number}"

    def stream(self, seed: int, what: str) -> str:
        return f"{seed}/{what}/{self.key}"

    def later(self, turns: int) -> _Draw:
        """So many turns further on."""
        return dataclasses.replace(self, number=self.number + turns)


class Workload:
    """The requests of one run, in the order in which they are sent; turns of a conversation follow its first one.

    Arrivals, classes and each prompt have random streams of their own: a change of one leaves the others alone.
    """

    def __init__(self, config: BenchConfig, mix: ClassMix, calibration: Calibration | None = None) -> None:
        self._config = config
        self._mix = mix
        self._calibration = calibration or Calibration()
        self._cancellations = Cancellations(config.cancel_share, config.seed)
        rng = random.Random(f"{config.seed}/prefix")
        self._shared_prefix = rng.choices(WORDS, k=self._calibration.words_for(config.shared_prefix_tokens))
        self._head_offset = rng.randrange(len(WORDS) ** NUM_HEAD_WORDS)
        if config.prompt_salt:
            salted = random.Random(f"{config.seed}/salt/{config.prompt_salt}")
            self._head_offset = salted.randrange(len(WORDS) ** NUM_HEAD_WORDS)
        self._class_prefixes = {
            c.name: random.Random(f"{config.seed}/prefix/{c.name}").choices(
                WORDS, k=self._calibration.words_for(c.prefix_tokens)
            )
            for c in mix.classes
            if c.prefix_tokens is not None
        }

    def requests(self) -> Iterator[PlannedRequest]:
        """The requests; an open loop's end with its number or its duration, a closed one's with its number."""
        config = self._config
        index = 0
        of_classes = any(c.has_own_arrivals for c in self._mix.classes)
        nums: collections.Counter[str] = collections.Counter()
        for offset_s, slo_class in self._arrivals():
            if offset_s is not None and config.duration_s is not None and offset_s >= config.duration_s:
                return
            # With arrivals of its own a class sends the same requests whatever the rates of the others are.
            draw = _Draw(slo_class.name, nums[slo_class.name]) if of_classes else _Draw(None, index)
            for planned in self._conversation(index, offset_s, slo_class, draw):
                if config.max_requests is not None and planned.index >= config.max_requests:
                    return
                yield planned
                index = planned.index + 1
                nums[slo_class.name] += 1

    def _arrivals(self) -> Iterator[tuple[float | None, ClassShare]]:
        """When conversations begin, and of which class."""
        config, classes = self._config, self._mix.classes
        if any(c.has_own_arrivals for c in classes):
            return heapq.merge(*(self._arrivals_of(c) for c in classes), key=lambda arrival: arrival[0])
        class_rng = random.Random(f"{config.seed}/classes")
        shares = sum(c.share for c in classes)
        # Shares are of requests: a conversation of many turns begins less often.
        rate_per_s = config.rate_per_s * sum(c.share / c.mean_turns for c in classes) / shares
        offsets_s: Iterator[float | None] = itertools.repeat(None)
        if config.is_open_loop:
            offsets_s = self._offsets_s(rate_per_s, None, None, "arrivals")
        return ((offset_s, self._mix.draw(class_rng)) for offset_s in offsets_s)

    def _arrivals_of(self, slo_class: ClassShare) -> Iterator[tuple[float, ClassShare]]:
        """Of a class with a process of its own. Classes without a rate divide the run's by their shares."""
        rate_per_s = slo_class.rate_per_s
        if rate_per_s is None:
            shares = sum(c.share for c in self._mix.classes if c.rate_per_s is None)
            rate_per_s = self._config.rate_per_s * slo_class.share / shares
        stream = f"arrivals/{slo_class.name}"
        offsets_s = self._offsets_s(rate_per_s / slo_class.mean_turns, slo_class.arrivals, slo_class.cv, stream)
        return ((offset_s, slo_class) for offset_s in offsets_s)

    def _offsets_s(self, rate_per_s: float, kind: Arrivals | None, cv: float | None, stream: str) -> Iterator[float]:
        config = self._config
        if kind is None:
            assert config.arrival_kind != "trace", "there is no trace"
            kind = config.arrival_kind
        cv = config.burstiness**-0.5 if cv is None else cv
        return arrival_offsets_s(kind, rate_per_s, random.Random(f"{config.seed}/{stream}"), cv)

    def _conversation(
        self, index: int, offset_s: float | None, slo_class: ClassShare, draw: _Draw
    ) -> Iterator[PlannedRequest]:
        seed = self._config.seed
        first = self._plan(index, offset_s, slo_class, draw)
        num_turns = slo_class.turns.draw(random.Random(draw.stream(seed, "turns")))
        if num_turns == 1:
            yield first
            return
        before = dataclasses.replace(first, session=f"{slo_class.name}/{index}")
        yield before
        for turn in range(1, num_turns):
            turn_draw = draw.later(turn)
            plain = self._plan(index + turn, None, slo_class, turn_draw, has_prefix=False)
            before = dataclasses.replace(
                plain,
                num_prompt_tokens=before.num_prompt_tokens + before.num_output_tokens + plain.num_prompt_tokens,
                session=before.session,
                after=before.trace_id,
                think_s=random.Random(turn_draw.stream(seed, "think")).uniform(*slo_class.think_s),
            )
            yield before

    def _plan(
        self, index: int, offset_s: float | None, slo_class: ClassShare, draw: _Draw, *, has_prefix: bool = True
    ) -> PlannedRequest:
        rng = random.Random(draw.stream(self._config.seed, "request"))
        num_own_tokens = slo_class.prompt_tokens.draw(rng)
        num_output_tokens = slo_class.output_tokens.draw(rng)
        num_words = max(self._calibration.words_for(num_own_tokens), 1)
        own = head_words(index + self._head_offset) + rng.choices(WORDS, k=max(num_words - NUM_HEAD_WORDS, 0))
        prefix, num_prefix_tokens = self._shared_prefix, self._config.shared_prefix_tokens
        if slo_class.prefix_tokens is not None:
            prefix, num_prefix_tokens = self._class_prefixes[slo_class.name], slo_class.prefix_tokens
        if not has_prefix:
            prefix, num_prefix_tokens = [], 0
        return PlannedRequest(
            index,
            slo_class.name,
            offset_s,
            " ".join(prefix + own[:num_words]),
            num_prefix_tokens + num_own_tokens,
            num_output_tokens,
            trace_id=index,
            cancel_after_tokens=self._cancellations.draw(draw.key, num_output_tokens),
        )
