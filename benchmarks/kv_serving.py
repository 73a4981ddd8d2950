"""What the benchmarks of KV tiers over HTTP share: servers side by side, streamed chats, metrics, texts, headings."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import random
import re
import resource
import shlex
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from benchmarks.paired_steps import read_processor_times
from benchmarks.serve_and_bench import serving
from engine.dtype import resolve_dtype
from engine.kv_cache import bytes_per_token
from engine.models.weight_formats import FormatChoice
from engine.plan_model import model_in_files
from loadgen.events import DONE, StreamError, StreamReader, error_code, error_text, parse_data
from loadgen.targets import read_told_targets
from loadgen.trace import RequestTrace, TraceEnd
from loadgen.workload import PlannedRequest
from offload.fingerprint import identify_processor
from offload.hardware import find_hardware
from offload.hardware_cost import HardwareCost
from offload.known_models import known_shape
from offload.model_shape import ModelShape
from offload.step_cost import Quantile
from offload.step_load import StepLoad
from offload.transfer import Direction
from server.model_source import resolve_model

TEXT = Path(__file__).parent.parent / "tests" / "data" / "openings.txt"
TIMEOUT_S = 240.0
CHUNK_TOKENS = 512
PACE_CHARACTERS = (800, 5600)
PACE_TOKENS = 2048
"""More than the longer of these texts has."""
MODEL_THERE = "llama-3-8b"
"""Of which a GPU's ratio of loading to computing is taken, in bfloat16."""
Message = dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Arm:
    """A server by its name and what it is started with."""

    name: str
    options: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a client got."""

    trace: RequestTrace
    text: str

    @property
    def ttft_s(self) -> float:
        """Raises ValueError: there was no text."""
        if not self.trace.chunks:
            raise ValueError(f"no answer: {self.trace.end}, {self.trace.error}")
        return self.trace.chunks[0].time_s - self.trace.intended_s

    def cached(self, tier: str) -> int:
        """Prompt tokens found in a tier; without tiers all that were found are the device's."""
        by_tier = self.trace.cached_tokens_by_tier
        if by_tier is None:
            return (self.trace.num_cached_tokens or 0) if tier == "device" else 0
        return by_tier.get(tier, 0)


class Chats:
    """Streamed, greedy chat requests to one server. Answers have exactly the length asked for."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False)
        self._count = 0

    async def ask(self, messages: Sequence[Message], num_output_tokens: int, slo_class: str = "standard") -> Answer:
        """One answer, or why there is none. Times are from the moment of the call."""
        self._count += 1
        planned = PlannedRequest(self._count, slo_class, None, messages[-1]["content"], 0, num_output_tokens)
        loop = asyncio.get_running_loop()
        intended_s = loop.time()
        body = {
            "model": "smollm2-135m", "messages": list(messages), "max_tokens": num_output_tokens, "temperature": 0.0,
            "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        }  # fmt: skip
        trace = RequestTrace(planned, intended_s, sent_s=intended_s)
        request = self.http.build_request("POST", "/v1/chat/completions", json=body, headers={"x-slo-class": slo_class})
        try:
            text = await self._exchange(request, trace)
        except (httpx.HTTPError, StreamError) as error:
            trace.finish(TraceEnd.FAILED, loop.time(), f"{type(error).__name__}: {error}")
            text = ""
        return Answer(trace, text)

    async def _exchange(self, request: httpx.Request, trace: RequestTrace) -> str:
        loop = asyncio.get_running_loop()
        response = await self.http.send(request, stream=True)
        parts: list[str] = []
        try:
            trace.headers_s, trace.status = loop.time(), response.status_code
            trace.told = read_told_targets(response.headers)
            if response.status_code != 200:
                content = json.loads(await response.aread())
                end = TraceEnd.REFUSED if response.status_code in (429, 503) else TraceEnd.FAILED
                trace.finish(end, loop.time(), error_text(content), error_code(content))
                return ""
            reader = StreamReader(trace)
            async for line in response.aiter_lines():
                data = parse_data(line)
                if data is not None:
                    reader.feed(data, loop.time())
                    parts.append(_text_of(data))
            reader.close(loop.time())
        finally:
            await response.aclose()
        return "".join(parts)


def _text_of(data: str) -> str:
    if data == DONE:
        return ""
    choices = json.loads(data).get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


@contextlib.contextmanager
def serving_all(arms: Sequence[Arm]) -> Iterator[dict[str, str]]:
    """URLs by name, while all of them run.

    Raises:
        RuntimeError: one did not start.
    """
    with contextlib.ExitStack() as stack:
        yield {arm.name: stack.enter_context(serving(list(arm.options))) for arm in arms}


def fetch_metrics(url: str) -> dict[str, float]:
    """Samples by name and labels, such as `sample` makes.

    Raises:
        OSError: it does not answer.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_S) as response:
        text = response.read().decode("utf-8")
    pairs = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def sample(name: str, **labels: str) -> str:
    """The key of a sample in what `fetch_metrics` gives."""
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if labels else name


def gained(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """What a counter has counted meanwhile."""
    return after.get(name, 0.0) - before.get(name, 0.0)


class Texts:
    """English prose of any length, other for each seed: the sentences of five novels' openings in random order."""

    def __init__(self) -> None:
        words = " ".join(TEXT.read_text(encoding="utf-8").split())
        self._sentences = re.split(r"(?<=[.!?;]) ", words)

    def make(self, seed: str, num_characters: int) -> str:
        rng = random.Random(seed)
        parts, length = [f"({rng.randrange(10**6)})"], 0
        while length < num_characters:
            parts.append(rng.choice(self._sentences))
            length += len(parts[-1]) + 1
        return " ".join(parts)[: max(num_characters, 10)]


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """What a server was found to take, with nothing else to do."""

    s_per_token: float
    """Of a prompt."""
    tokens_per_character: float

    def characters(self, num_tokens: int) -> int:
        return int(num_tokens / self.tokens_per_character)


async def find_pace(url: str, texts: Texts, num_rounds: int) -> Pace:
    """From the difference between long prompts and short ones, by the fastest of each."""
    chats = Chats(url)
    times: dict[int, list[tuple[float, int]]] = {length: [] for length in PACE_CHARACTERS}
    num_characters = num_tokens = 0
    for index in range(num_rounds + 1):
        for length, found in times.items():
            text = texts.make(f"pace/{index}/{length}", length)
            answer = await chats.ask([{"role": "user", "content": text}], 1)
            num_prompt_tokens = answer.trace.num_prompt_tokens or 0
            num_characters, num_tokens = num_characters + len(text), num_tokens + num_prompt_tokens
            if index:  # the first ones warm up
                found.append((answer.ttft_s, num_prompt_tokens))
    await chats.http.aclose()
    (short_s, few), (long_s, many) = (min(found) for found in times.values())
    return Pace((long_s - short_s) / (many - few), num_tokens / num_characters)


def loads_per_compute(hardware_id: str) -> float:
    """How many times as long a prompt's token takes there to compute as its keys and values take to load."""
    shape: ModelShape = known_shape(MODEL_THERE, "bfloat16")
    there = HardwareCost.effective(find_hardware(hardware_id), shape)
    load = StepLoad(CHUNK_TOKENS, 1, 2 * CHUNK_TOKENS)
    compute_s = shape.num_layers * there.layer_s(load, Quantile.P50) / CHUNK_TOKENS
    return compute_s * there.link_bytes_per_s(Direction.H2D, Quantile.P50) / shape.kv_bytes_per_token


def kv_bytes_per_token(model: str, dtype: str) -> int:
    """Of a model that was pulled, served in that type.

    Raises:
        OSError, ValueError: it is not there, or cannot be read.
    """
    activations = resolve_dtype(dtype)
    planned = model_in_files(resolve_model(model).path, FormatChoice(activations, is_native=True), model)
    return bytes_per_token(planned.config, planned.dtype)


class Quiet:
    """What others computed while this process and its servers measured. To be asked once the servers have ended."""

    def __init__(self) -> None:
        self._before, self._own_before_s = read_processor_times(), _own_s()

    def note(self) -> str:
        after = read_processor_times()
        wall_s = after.wall_s - self._before.wall_s
        foreign_s = (after.machine_s - self._before.machine_s) - (_own_s() - self._own_before_s)
        return f"{wall_s:.0f} s in all; other processes took {max(0.0, foreign_s) / wall_s:.0%} of a processor."


def _own_s() -> float:
    """Processor seconds of this process and of all its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def heading(name: str, text: str) -> str:
    """Machine, command and date, in markdown."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{time.strftime('%d %B %Y %H:%M %Z')}; {identify_processor().name}, {os.cpu_count()} processors, Python "
        f"{platform.python_version()}; load {load}\n`python -m benchmarks.{name} {shlex.join(sys.argv[1:])}`\n{text}\n"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
