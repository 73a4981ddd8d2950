"""More chats than the device's blocks hold: `python -m benchmarks.kv_overflow`.

Sixteen chats of mixed classes, several turns each, on a server whose device blocks hold a quarter of them; with KV
tiers and without, in turn. A server without the limit answers the same first: it says what the texts must be, and its
answers are everyone's history. Numbers are float32 unless `--dtype` says otherwise, so that the same text is a fair
demand.

Nobody is refused (`--admission caps`, and classes that queue what would be late). Requests are judged by the load
generator's rules and the classes' own targets, by the client's clock. Everything that was sent is in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.kv_serving import (
    PACE_TOKENS,
    Answer,
    Arm,
    Chats,
    Message,
    Pace,
    Quiet,
    Texts,
    fetch_metrics,
    find_pace,
    gained,
    heading,
    kv_bytes_per_token,
    loads_per_compute,
    sample,
    serving_all,
    table,
)
from engine.processors import available_processors
from loadgen.config import BenchConfig
from loadgen.metrics import ClassSummary, Outcome, judge, summarize
from loadgen.server_probe import probe_server
from loadgen.targets import TargetBook
from loadgen.trace import TraceEnd
from scheduler.slo import SLOClasses

LENGTHS = {"realtime": 1, "interactive": 1, "standard": 2, "batch": 4}
"""Of answers, in shares of `--answer-tokens`."""
CLASSES = tuple(LENGTHS)
FREE, OFF, ON = "no limit", "tiers off", "tiers on"
SUMS = (
    ("preemptions, free/swap/recompute", "headrace_preemptions_total", "restore", ("free", "swap", "recompute"), 1),
    ("tokens recomputed", "headrace_prompt_tokens_total", "source", ("recompute",), 1),
    ("prompt tokens computed", "headrace_prompt_tokens_total", "source", ("compute",), 1),
    ("cached tokens, device/host", "headrace_kv_tier_hit_tokens_total", "tier", ("device", "host"), 1),
    ("MB stored/loaded", "headrace_kv_transfer_bytes_total", "kind", ("store", "load"), 10**6),
)
"""Of the servers' counters: what to call it, metric, label, its values, unit."""
SETTLE_S = 1.0
"""Between two runs: what is under way in the background of one server shall not disturb the next."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What is asked."""

    num_chats: int
    num_turns: int
    num_first_tokens: int
    num_later_tokens: int
    num_answer_tokens: int

    def answer_tokens(self, slo_class: str) -> int:
        """Generated in a turn."""
        return self.num_answer_tokens * LENGTHS[slo_class]

    def tokens_of_chat(self, slo_class: str) -> int:
        """At its end, about."""
        answer = self.answer_tokens(slo_class)
        later = self.num_later_tokens + answer + 16
        return self.num_first_tokens + answer + 64 + (self.num_turns - 1) * later

    @property
    def longest_tokens(self) -> int:
        """Of a request, with room to spare, in whole blocks."""
        return -(-int(1.25 * self.tokens_of_chat(CLASSES[-1])) // 16) * 16

    @property
    def mean_tokens(self) -> int:
        """Of a chat at its end."""
        return sum(self.tokens_of_chat(slo_class) for slo_class in CLASSES) // len(CLASSES)


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """What servers are told besides."""

    classes_path: Path
    gbps: float = 0.0
    """Of the link."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """All chats on one server."""

    answers: dict[tuple[int, int], Answer]
    """By chat and turn."""
    before: Mapping[str, float]
    after: Mapping[str, float]
    wall_s: float

    def gained(self, name: str) -> float:
        return gained(self.before, self.after, name)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=available_processors().compute_threads)
    parser.add_argument("--emulate", default="a100-80", help="GPU whose ratio of loading to computing the link gets")
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--first-tokens", type=int, default=400)
    parser.add_argument("--later-tokens", type=int, default=48)
    parser.add_argument("--answer-tokens", type=int, default=48, help="generated in a turn; standard 2, batch 4 times")
    parser.add_argument("--fit", type=float, default=4.0, help="chats that the device's blocks hold")
    parser.add_argument(
        "--device-memory", metavar="SIZE", help="limit weights and blocks together to that, in place of --fit"
    )
    parser.add_argument("--spread-s", type=float, default=4.0, help="within which the chats begin")
    parser.add_argument("--think-s", type=float, default=1.0, help="between answer and next message, on average")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one round of two turns, to see that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.turns, options.first_tokens, options.answer_tokens, options.rounds = 2, 150, 24, 1
    return options


def limited_arm(options: argparse.Namespace, shape: Shape, token_bytes: int, site: Site) -> Arm:
    """The server with the limit and with tiers."""
    link = ("--link-gbps", f"{site.gbps:.4f}")
    if options.device_memory:
        limit: tuple[str, ...] = ("--device-memory", options.device_memory, *link)
    else:
        host = str(2 * shape.num_chats * shape.mean_tokens * token_bytes)
        limit = (*limit_of_blocks(options, shape, token_bytes), "--host-memory", host, *link)
    return Arm(ON, (*common(options, shape.longest_tokens, site), *limit))


def arm_without_tiers(options: argparse.Namespace, shape: Shape, token_bytes: int, site: Site, url: str) -> Arm:
    """The same without; where weights may be streamed, with host memory for these alone, as the one at `url` has."""
    if options.device_memory:
        weights_bytes = fetch_metrics(url)[sample("headrace_host_memory_bytes", owner="weights")]
        link = ("--link-gbps", f"{site.gbps:.4f}")
        limit: tuple[str, ...] = ("--device-memory", options.device_memory, *link)
        limit = (*limit, "--host-memory", f"{weights_bytes:.0f}")
    else:
        limit = limit_of_blocks(options, shape, token_bytes)
    return Arm(OFF, (*common(options, shape.longest_tokens, site), *limit))


def limit_of_blocks(options: argparse.Namespace, shape: Shape, token_bytes: int) -> tuple[str, str]:
    return ("--kv-cache-memory", str(int(options.fit * shape.mean_tokens * token_bytes)))


def patient_classes() -> str:
    """A class file: the built-in classes, but whoever cannot be in time waits, and nobody is refused for it."""
    lines = ['default_class = "standard"']
    for c in SLOClasses():
        lines += [f"[classes.{c.name}]", f"ttft_base_s = {c.ttft_base_s}", f"tpot_s = {c.tpot_s}"]
        lines += [f"ttft_per_1k_tokens_s = {c.ttft_per_1k_tokens_s}", f"protected = {str(c.protected).lower()}"]
        lines += [] if c.max_stall_s is None else [f"max_stall_s = {c.max_stall_s}"]
        lines += [f"objective = {c.objective}", f"share = {c.share}", 'when_infeasible = "queue"']
    return "\n".join(lines) + "\n"


def common(options: argparse.Namespace, longest_tokens: int, site: Site) -> tuple[str, ...]:
    """What all servers have in common, but for the longest request that they take."""
    return (
        "--model", options.model, "--dtype", options.dtype, "--threads", str(options.threads),
        "--max-model-len", str(longest_tokens), "--admission", "caps", "--classes", str(site.classes_path),
    )  # fmt: skip


class Load:
    """The chats of one round: the same for every server."""

    def __init__(self, options: argparse.Namespace, shape: Shape, pace: Pace, round_index: int) -> None:
        self._shape = shape
        self._pace = pace
        self._seed = f"{options.seed}/{round_index}"
        self._texts = Texts()
        rng = random.Random(self._seed)
        self.classes = [CLASSES[number % len(CLASSES)] for number in range(shape.num_chats)]
        # Lower classes first: whoever comes later finds the device's blocks taken.
        ranks = [CLASSES[::-1].index(name) for name in self.classes]
        self._starts_s = [options.spread_s * (rank + rng.random()) / len(CLASSES) for rank in ranks]
        self._thinks_s = [
            [rng.uniform(0.0, 2.0 * options.think_s) for _ in range(shape.num_turns)] for _ in range(shape.num_chats)
        ]

    async def run(self, url: str, expected: Mapping[tuple[int, int], Answer] | None) -> Run:
        """All chats at once.

        Args:
            expected: whose answers are the history; None: the server's own.
        """
        chats = Chats(url)
        answers: dict[tuple[int, int], Answer] = {}
        before, loop = fetch_metrics(url), asyncio.get_running_loop()
        started_s = loop.time()
        await asyncio.gather(*(self._chat(number, chats, answers, expected) for number in range(len(self.classes))))
        wall_s = loop.time() - started_s
        await asyncio.sleep(SETTLE_S)
        await chats.http.aclose()
        return Run(answers, before, fetch_metrics(url), wall_s)

    async def _chat(
        self,
        number: int,
        chats: Chats,
        answers: dict[tuple[int, int], Answer],
        expected: Mapping[tuple[int, int], Answer] | None,
    ) -> None:
        shape, history = self._shape, list[Message]()
        await asyncio.sleep(self._starts_s[number])
        for turn in range(shape.num_turns):
            num_tokens = shape.num_later_tokens if turn else shape.num_first_tokens
            text = self._texts.make(f"{self._seed}/{number}/{turn}", self._pace.characters(num_tokens))
            history.append({"role": "user", "content": text})
            answer = await chats.ask(history, shape.answer_tokens(self.classes[number]), self.classes[number])
            answers[number, turn] = answer
            reply = (answer if expected is None else expected[number, turn]).text
            history.append({"role": "assistant", "content": reply})
            await asyncio.sleep(self._thinks_s[number][turn])


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """Of one arm, all rounds."""

    runs: list[Run]
    references: list[Run]
    book: TargetBook

    @property
    def unfinished(self) -> Counter[str]:
        """Requests without a complete answer, by why."""
        ends = (answer.trace for run in self.runs for answer in run.answers.values())
        return Counter(f"{trace.end}: {trace.error_code}" for trace in ends if trace.end is not TraceEnd.COMPLETED)

    @property
    def num_differing(self) -> int:
        return sum(
            answer.text != reference.answers[place].text
            for run, reference in zip(self.runs, self.references, strict=True)
            for place, answer in run.answers.items()
        )

    @property
    def num_answers(self) -> int:
        return sum(len(run.answers) for run in self.runs)

    def total(self, name: str, **labels: str) -> float:
        return sum(run.gained(sample(name, **labels)) for run in self.runs)

    def summary(self, slo_class: str) -> ClassSummary:
        traces = [a.trace for run in self.runs for a in run.answers.values() if a.trace.planned.slo_class == slo_class]
        judged = [(trace, judge(trace, self.book)) for trace in traces]
        return summarize(slo_class, judged, None)


async def measure(urls: Mapping[str, str], options: argparse.Namespace, shape: Shape, pace: Pace) -> dict[str, Found]:
    """All rounds on all servers."""
    runs: dict[str, list[Run]] = {name: [] for name in (FREE, OFF, ON)}
    for round_index in range(options.rounds):
        load = Load(options, shape, pace, round_index)
        reference = await load.run(urls[FREE], None)
        runs[FREE].append(reference)
        for name in (OFF, ON) if round_index % 2 == 0 else (ON, OFF):
            runs[name].append(await load.run(urls[name], reference.answers))
    chats = Chats(urls[FREE])
    server = await probe_server(BenchConfig(url=urls[FREE]), chats.http)
    await chats.http.aclose()
    book = TargetBook({}, server.classes)
    return {name: Found(each, runs[FREE], book) for name, each in runs.items()}


def report(found: Mapping[str, Found]) -> str:
    """Two tables, in markdown."""
    rows = []
    for slo_class in CLASSES:
        cells = [slo_class]
        for one in found.values():
            summary = one.summary(slo_class)
            attained = summary.offered_attainment
            late = ", ".join(
                f"{count} {outcome.value}"
                for outcome, count in summary.outcomes.items()
                if count and outcome is not Outcome.MET
            )
            ttft = "-" if summary.ttft is None else f"{summary.ttft.p50_s * 1e3:.0f}/{summary.ttft.p95_s * 1e3:.0f}"
            share = "-" if attained is None else f"{attained:.0%}"
            cells.append(f"{share} of {summary.num_sent}; {ttft}" + (f" ({late})" if late else ""))
        rows.append(cells)
    attainment = table(("class: in time; TTFT p50/p95, ms", *found), rows)
    counts = []
    for name, one in found.items():
        sums = {
            name: "/".join(f"{one.total(family, **{label: kind}) / unit:.0f}" for kind in kinds)
            for name, family, label, kinds, unit in SUMS
        }
        counts.append(
            [
                name, f"{one.num_answers - one.unfinished.total()} of {one.num_answers}",
                f"{one.num_differing} of {one.num_answers}", *sums.values(),
                " + ".join(f"{run.wall_s:.0f}" for run in one.runs),
            ]
        )  # fmt: skip
    columns = ("server", "finished", "texts that differ", *(name for name, *_ in SUMS), "s")
    problems = [f"{name}: {count} x {why}" for name, one in found.items() for why, count in one.unfinished.items()]
    return "\n".join([attainment, "", table(columns, counts), *problems])


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    quiet = Quiet()
    with tempfile.TemporaryDirectory() as temporary:
        classes_path = Path(temporary) / "classes.toml"
        classes_path.write_text(patient_classes(), encoding="utf-8")
        serve_and_measure(options, Site(classes_path))
    print(f"\n{quiet.note()}")


def serve_and_measure(options: argparse.Namespace, site: Site) -> None:
    """Everything but the note on other processes."""
    shape = Shape(options.chats, options.turns, options.first_tokens, options.later_tokens, options.answer_tokens)
    token_bytes = kv_bytes_per_token(options.model, options.dtype)
    everything = str(2 * shape.num_chats * shape.mean_tokens * token_bytes)
    free = Arm(FREE, (*common(options, PACE_TOKENS, site), "--kv-cache-memory", everything))
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(serving_all([free]))
        pace = asyncio.run(find_pace(urls[FREE], Texts(), 1 if options.quick else 3))
        site = dataclasses.replace(site, gbps=loads_per_compute(options.emulate) * token_bytes / pace.s_per_token / 1e9)
        print(heading("kv_overflow", describe(options, shape, site)), flush=True)
        urls |= stack.enter_context(serving_all([limited_arm(options, shape, token_bytes, site)]))
        off = arm_without_tiers(options, shape, token_bytes, site, urls[ON])
        urls |= stack.enter_context(serving_all([off]))
        found = asyncio.run(measure(urls, options, shape, pace))
    print(report(found))


def describe(options: argparse.Namespace, shape: Shape, site: Site) -> str:
    """What is asked, and of whom."""
    limit = f"--device-memory {options.device_memory}" if options.device_memory else f"{options.fit:g} of them"
    return (
        f"{options.model}, {options.dtype}, {options.threads} threads; {shape.num_chats} chats of {shape.num_turns} "
        f"turns, about {shape.mean_tokens} tokens each at their ends, {shape.num_answer_tokens} to "
        f"{shape.answer_tokens(CLASSES[-1])} a turn generated; device blocks for {limit}; link {site.gbps:.3f} GB/s, "
        f"the ratio of {options.emulate}; {options.rounds} rounds, seed {options.seed}"
    )


if __name__ == "__main__":
    main()
