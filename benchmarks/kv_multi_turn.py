"""Multi-turn chat over KV tiers: `python -m benchmarks.kv_multi_turn`.

Eight conversations take turns, one request at a time, so that each prompt's beginning was computed a while ago. Servers
that differ in nothing but where KV blocks may lie get the same messages in turn, the order rotating:

- `none`: the device's blocks hold two of the conversations, there is nothing else;
- `host`: the same, and host memory for all of them;
- `disk`: the same, with host memory for two more, and a disk;
- `device`: the device's blocks hold all of them; nothing can be faster.

The link is held to a speed at which loading a token's keys and values takes as small a part of computing them as on a
GPU (`--emulate`, with Llama 3 8B in bfloat16; computing here is measured first). TTFT is the client's, from sending to
the first text. The history of all arms is made of the answers of `none`, so that all prompts are alike.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kv_serving import (
    MODEL_THERE,
    Answer,
    Arm,
    Chats,
    Message,
    Pace,
    Quiet,
    Texts,
    fetch_metrics,
    find_pace,
    heading,
    kv_bytes_per_token,
    loads_per_compute,
    sample,
    serving_all,
    table,
)
from benchmarks.serve_and_bench import serving
from engine.processors import available_processors
from offload.measurements import median, p95

NUM_CONVERSATIONS = 8
NUM_ON_DEVICE = 2
GOAL = 5.0
ARMS = ("none", "host", "disk", "device")
TEMPLATE_TOKENS = 64
"""Of a conversation's frame, at most; and a little room."""
TURN_TEMPLATE_TOKENS = 16
BLOCK_SIZE = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """What is said."""

    num_turns: int
    num_first_tokens: int
    """Of the first message of a conversation."""
    num_later_tokens: int
    num_answer_tokens: int

    @property
    def max_tokens(self) -> int:
        """Of a conversation at its end, in whole blocks."""
        one_more = self.num_later_tokens + self.num_answer_tokens + TURN_TEMPLATE_TOKENS
        most = self.num_first_tokens + self.num_answer_tokens + TEMPLATE_TOKENS + (self.num_turns - 1) * one_more
        return -(-int(1.05 * most) // BLOCK_SIZE) * BLOCK_SIZE


@dataclasses.dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of one conversation: what each arm answered."""

    turn: int
    answers: dict[str, Answer]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=available_processors().compute_threads)
    parser.add_argument("--emulate", default="a100-80", help="GPU whose ratio of loading to computing the link gets")
    parser.add_argument("--link-gbps", type=float, help="of the link, in place of --emulate")
    parser.add_argument("--turns", type=int, default=5, help="of each conversation; the first is not warm")
    parser.add_argument("--first-tokens", type=int, default=1200, help="of a conversation's first message, about")
    parser.add_argument("--later-tokens", type=int, default=32, help="of the others, about")
    parser.add_argument("--answer-tokens", type=int, default=24)
    parser.add_argument("--pause-s", type=float, default=0.05, help="after each answer")
    parser.add_argument(
        "--drop-page-cache",
        action="store_true",
        help="make the disk's server read from the disk itself, not from the page cache",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="short conversations of three turns, to see that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.turns, options.first_tokens, options.answer_tokens = 3, 400, 8
    return options


def make_arms(options: argparse.Namespace, script: Script, token_bytes: int, gbps: float, disk: Path) -> list[Arm]:
    """Four servers."""
    conversation = script.max_tokens * token_bytes
    common = ("--model", options.model, "--threads", str(options.threads), "--max-model-len", str(script.max_tokens))
    two, all_of_them = NUM_ON_DEVICE * conversation, NUM_CONVERSATIONS * conversation
    link = ("--link-gbps", f"{gbps:.4f}")
    few, many = ("--kv-cache-memory", str(two)), ("--kv-cache-memory", str(all_of_them + conversation))
    return [
        Arm("none", (*common, *few)),
        Arm("host", (*common, *few, *link, "--host-memory", str(all_of_them + conversation))),
        Arm(
            "disk",
            (*common, *few, *link, "--host-memory", str(two), "--disk-path", str(disk), "--disk-size", "4GiB"),
        ),
        Arm("device", (*common, *many)),
    ]


async def converse(
    urls: dict[str, str], options: argparse.Namespace, script: Script, pace: Pace, disk: Path
) -> list[Exchange]:
    """All turns of all conversations."""
    texts = Texts()
    chats = {name: Chats(url) for name, url in urls.items()}
    histories: list[list[Message]] = [[] for _ in range(NUM_CONVERSATIONS)]
    exchanges: list[Exchange] = []
    for turn in range(script.num_turns):
        for number, history in enumerate(histories):
            num_tokens = script.num_later_tokens if turn else script.num_first_tokens
            text = texts.make(f"{options.seed}/{number}/{turn}", pace.characters(num_tokens))
            history.append({"role": "user", "content": text})
            first = len(exchanges) % len(ARMS)
            answers: dict[str, Answer] = {}
            for name in ARMS[first:] + ARMS[:first]:
                if name == "disk" and options.drop_page_cache:
                    drop_page_cache(disk)
                answers[name] = await chats[name].ask(history, script.num_answer_tokens)
                await asyncio.sleep(options.pause_s)
            exchanges.append(Exchange(turn, answers))
            history.append({"role": "assistant", "content": answers["none"].text})
    for one in chats.values():
        await one.http.aclose()
    return exchanges


def drop_page_cache(directory: Path) -> None:
    """Of the files below it; what is not written yet is written first."""
    for path in directory.rglob("*.kv"):
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # evicted meanwhile
            continue
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def report(exchanges: Sequence[Exchange]) -> str:
    """Warm turns, in markdown."""
    warm = [exchange.answers for exchange in exchanges if exchange.turn]
    rows = []
    for name in ARMS:
        ttfts_s = [answers[name].ttft_s for answers in warm]
        cached = "/".join(
            f"{sum(answers[name].cached(tier) for answers in warm) / len(warm):.0f}"
            for tier in ("device", "host", "disk")
        )
        ratios = [answers["none"].ttft_s / answers[name].ttft_s for answers in warm]
        differing = sum(answers[name].text != answers["none"].text for answers in (e.answers for e in exchanges))
        rows.append(
            [
                name, f"{len(warm)}", cached, f"{median(ttfts_s) * 1e3:.0f}", f"{p95(ttfts_s) * 1e3:.0f}",
                f"{median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})", f"{differing} of {len(exchanges)}",
            ]
        )  # fmt: skip
    columns = (
        "tiers", "warm turns", "cached tokens, device/host/disk", "TTFT p50, ms", "p95, ms",
        "times as fast as none, pairwise median (least-most)", "answers that differ from none",
    )  # fmt: skip
    prompts = [answers["none"].trace.num_prompt_tokens or 0 for answers in warm]
    ratio = median([a["none"].ttft_s / a["host"].ttft_s for a in warm])
    verdict = "holds" if ratio >= GOAL else "does not hold"
    return (
        f"Prompts of warm turns: {min(prompts)} to {max(prompts)} tokens.\n\n{table(columns, rows)}\n\n"
        f"Goal: at least {GOAL:g} times as fast from the host as computed again: {ratio:.1f}, {verdict}."
    )


def report_copies(urls: dict[str, str]) -> str:
    """What was moved, by the servers' metrics."""
    lines = []
    for name in ("host", "disk"):
        metrics = fetch_metrics(urls[name])
        kinds = ("store", "load", "write", "read")
        moved = {kind: metrics[sample("headrace_kv_transfer_bytes_total", kind=kind)] for kind in kinds}
        busy = {kind: metrics[sample("headrace_kv_transfer_busy_seconds_total", kind=kind)] for kind in kinds}
        bad = sum(
            value
            for key, value in metrics.items()
            if key.startswith("headrace_kv_transfers_total{") and 'outcome="done"' not in key
        )
        speeds = (f"{kind} {moved[kind] / 1e6:.0f} MB in {busy[kind]:.2f} s" for kind in kinds)
        choices = {c: metrics[sample("headrace_kv_hit_choices_total", choice=c)] for c in ("load", "recompute")}
        lines.append(
            f"{name}: {', '.join(speeds)}; loads asked for {choices['load']:.0f}, prefixes rather computed "
            f"{choices['recompute']:.0f}; blocks that failed {bad:.0f}."
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    quiet = Quiet()
    script = Script(options.turns, options.first_tokens, options.later_tokens, options.answer_tokens)
    token_bytes = kv_bytes_per_token(options.model, "auto")
    common = ["--model", options.model, "--threads", str(options.threads)]
    with serving(common) as url:
        pace = asyncio.run(find_pace(url, Texts(), 1 if options.quick else 3))
    ratio = loads_per_compute(options.emulate)
    gbps = options.link_gbps or ratio * token_bytes / pace.s_per_token / 1e9
    what = "as given" if options.link_gbps else f"{ratio:.0f} times as fast as computing, as {options.emulate} with "
    print(
        heading(
            "kv_multi_turn",
            f"{options.model}, {options.threads} threads, {NUM_CONVERSATIONS} conversations, device blocks for "
            f"{NUM_ON_DEVICE} of {script.max_tokens} tokens; a token takes {pace.s_per_token * 1e6:.0f} us to compute "
            f"and is {token_bytes:,} bytes; link {gbps:.3f} GB/s ({what}"
            f"{'' if options.link_gbps else MODEL_THERE}); the disk is read "
            f"{'from the disk' if options.drop_page_cache else 'through the page cache'}; seed {options.seed}",
        ),
        flush=True,
    )
    with tempfile.TemporaryDirectory() as temporary:
        disk = Path(temporary)
        with serving_all(make_arms(options, script, token_bytes, gbps, disk)) as urls:
            exchanges = asyncio.run(converse(urls, options, script, pace, disk))
            print(report(exchanges))
            print(f"\n{report_copies(urls)}")
    print(quiet.note())


if __name__ == "__main__":
    main()
