"""Reads a server's `/metrics`, under the names of Headrace, vLLM, SGLang and llama.cpp."""

from __future__ import annotations

import asyncio
import dataclasses

import httpx

from loadgen.events import error_text
from loadgen.exposition import ExpositionError, Sample, parse_exposition

METRICS_PATH = "/metrics"
_TIMEOUT_S = 10.0
_SETTLE_S = 2.0
"""How long a server may take to count the requests whose end the client has seen."""
_POLL_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Dialect:
    """One server's names. None: it has no such metric."""

    server: str
    prefix: str
    completed: str | None
    """Counter of requests that ended, by `reason_label` where there is one."""
    reason_label: str | None
    prompt_tokens: str
    output_tokens: str
    inside: tuple[str, ...]
    """Gauges of the requests that run and that wait."""
    ttft: str | None
    """Histogram."""


HEADRACE = Dialect(
    "Headrace",
    "headrace_",
    None,  # by class and outcome instead
    None,
    "vllm:prompt_tokens_total",
    "headrace_generation_tokens_total",
    ("headrace_requests_running", "headrace_requests_waiting"),
    "headrace_ttft_seconds",
)
DIALECTS = (
    HEADRACE,  # first: it has vLLM's names too
    Dialect(
        "vLLM",
        "vllm:",
        "vllm:request_success_total",
        "finished_reason",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        "vllm:time_to_first_token_seconds",
    ),
    Dialect(
        "SGLang",
        "sglang:",
        "sglang:num_requests_total",
        None,
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
        ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        "sglang:time_to_first_token_seconds",
    ),
    Dialect(
        "llama.cpp",
        "llamacpp:",
        None,
        None,
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
        ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
        None,
    ),
)
OFFERED = "headrace_requests_offered_total"
OUTCOMES = "headrace_requests_slo_total"


@dataclasses.dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """A server's metrics at one moment."""

    samples: tuple[Sample, ...] = ()
    problem: str | None = None
    """Why there are none to compare with; None: there are."""

    @property
    def dialect(self) -> Dialect | None:
        """None: none of the servers whose names are known."""
        for dialect in DIALECTS:
            if any(sample.name.startswith(dialect.prefix) for sample in self.samples):
                return dialect
        return None

    def total(self, *names: str) -> float:
        """The sum over all series of some metrics; 0 where there is none."""
        return sum(sample.value for sample in self.samples if sample.name in names)

    def has(self, name: str) -> bool:
        return any(sample.name == name for sample in self.samples)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums over the other labels; a series without the label counts under an empty value."""
        sums: dict[str, float] = {}
        for sample in self.samples:
            if sample.name == name:
                value = sample.labels.get(label, "")
                sums[value] = sums.get(value, 0.0) + sample.value
        return sums

    def outcomes(self, slo_class: str) -> dict[str, float]:
        """Headrace's count of ended requests of a class, by outcome."""
        of_class = MetricsSnapshot(tuple(s for s in self.samples if s.labels.get("slo_class") == slo_class))
        return of_class.by_label(OUTCOMES, "outcome")

    @property
    def num_open(self) -> float:
        """Requests that the server has not ended."""
        dialect = self.dialect
        if dialect is None:
            return 0.0
        return self.total(OFFERED) - self.total(OUTCOMES) if dialect is HEADRACE else self.total(*dialect.inside)


async def scrape(http: httpx.AsyncClient) -> MetricsSnapshot:
    """The metrics now. Whatever goes wrong is told in `problem`: a load test does not depend on them."""
    try:
        response = await http.get(METRICS_PATH, timeout=_TIMEOUT_S)
    except httpx.HTTPError as error:
        return MetricsSnapshot(problem=f"{METRICS_PATH}: {str(error) or type(error).__name__}")
    if response.status_code != 200:
        return MetricsSnapshot(problem=f"{METRICS_PATH}: HTTP {response.status_code}: {error_text(_body(response))}")
    try:
        snapshot = MetricsSnapshot(parse_exposition(response.text))
    except ExpositionError as error:
        return MetricsSnapshot(problem=f"{METRICS_PATH} cannot be read: {error}")
    if snapshot.dialect is None:
        known = ", ".join(dialect.prefix for dialect in DIALECTS)
        return MetricsSnapshot(problem=f"{METRICS_PATH} has no metric of a known server (names in {known})")
    return snapshot


async def scrape_settled(http: httpx.AsyncClient, before: MetricsSnapshot) -> MetricsSnapshot:
    """The metrics once the server has ended as much as it had open before, or after a moment's patience: it may count
    a request a little later than the client has read its end."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _SETTLE_S
    snapshot = await scrape(http)
    while before.problem is None and snapshot.problem is None and snapshot.num_open > before.num_open:
        if loop.time() >= deadline_s:
            break
        await asyncio.sleep(_POLL_S)
        snapshot = await scrape(http)
    return snapshot


def _body(response: httpx.Response) -> object:
    try:
        body: object = response.json()
    except ValueError:
        body = response.text
    return body
