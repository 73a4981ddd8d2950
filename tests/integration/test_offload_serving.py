"""The default model in less device memory than its weights take: served by streaming, with the whole one's text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.headrace_process import HeadraceProcess

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(600)]

DEVICE_MIB = 240
READY_WITHIN_S = 180.0
"""The first start with a cap measures the machine."""
MAX_TOKENS = 24
PROMPTS = (
    "The capital of France is",
    "Water runs down a hill because",
    "def fibonacci(n):",
    "The miller's daughter kept the book. In it she wrote",
    "One, two, three,",
    "List three colours:",
)


@dataclasses.dataclass(frozen=True)
class Served:
    """One server, and how to ask it."""

    process: HeadraceProcess
    url: str

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def complete(self, prompt: str, slo_class: str) -> tuple[str, dict[str, str]]:
        """Text and headers of a greedy completion."""
        with self.client as client:
            raw = client.completions.with_raw_response.create(
                model="default", prompt=prompt, max_tokens=MAX_TOKENS, temperature=0,
                extra_headers={"x-slo-class": slo_class},
            )  # fmt: skip
            return raw.parse().choices[0].text, dict(raw.headers)

    def all_texts(self) -> list[str]:
        """Of all prompts at once, half of them in each class that is never closed."""
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            jobs = [pool.submit(self.complete, p, ("standard", "batch")[i % 2]) for i, p in enumerate(PROMPTS)]
            return [job.result()[0] for job in jobs]

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (li.rpartition(" ") for li in lines if li[0] != "#")}

    def classes(self) -> dict[str, dict[str, object]]:
        return {c["name"]: c for c in httpx.get(f"{self.url}/v1/slo").json()["classes"]}


@pytest.fixture(scope="module")
def streamed(real_model_path: Path) -> Iterator[Served]:
    arguments = ("--dtype", "bfloat16", "--device-memory", f"{DEVICE_MIB}MiB", "--link-gbps", "2")
    with HeadraceProcess(str(real_model_path), "--served-model-name", "default", *arguments) as process:
        yield Served(process, process.wait_ready(READY_WITHIN_S))


@pytest.fixture(scope="module")
def whole(real_model_path: Path) -> Iterator[Served]:
    with HeadraceProcess(str(real_model_path), "--served-model-name", "default", "--dtype", "bfloat16") as process:
        yield Served(process, process.wait_ready())


def test_texts_are_those_of_the_model_on_the_device(streamed: Served, whole: Served) -> None:
    """On native kernels a row's bits depend on no other row, so whatever the batches were the texts are equal."""
    assert streamed.all_texts() == whole.all_texts()


def test_weights_in_a_file_give_the_same_text(real_model_path: Path, tmp_path: Path, whole: Served) -> None:
    arguments = ("--dtype", "bfloat16", "--device-memory", f"{DEVICE_MIB}MiB", "--host-memory-directory", str(tmp_path))
    with HeadraceProcess(str(real_model_path), "--served-model-name", "default", *arguments) as process:
        served = Served(process, process.wait_ready(READY_WITHIN_S))
        assert served.complete(PROMPTS[0], "batch")[0] == whole.complete(PROMPTS[0], "batch")[0]
        assert served.metrics()['headrace_offload_bytes_total{direction="h2d",kind="weights"}'] > 2**20
        assert any("host memory in MiB (file): weights" in line for line in process.lines)
    assert list(tmp_path.iterdir()) == []


def test_a_third_of_the_layers_is_streamed_and_the_metrics_show_it(streamed: Served) -> None:
    before = streamed.metrics()
    assert before['headrace_offload_layers{place="host"}'] >= 10
    streamed.complete(PROMPTS[0], "batch")
    after = streamed.metrics()
    moved = 'headrace_offload_bytes_total{direction="h2d",kind="weights"}'
    loads = after["headrace_offload_weight_loads_total"] - before["headrace_offload_weight_loads_total"]
    assert after['headrace_kv_tier_on{tier="host"}'] == 1, "KV blocks have a place beside the weights, unasked"
    assert loads >= MAX_TOKENS * before['headrace_offload_layers{place="host"}']
    assert after[moved] - before[moved] > MAX_TOKENS * 30 * 2**20
    exposed, hidden = (after[f"headrace_offload_{name}_seconds_total"] for name in ("exposed", "hidden"))
    assert exposed + hidden > 0


def test_steps_are_predicted_and_the_metrics_show_how_well(streamed: Served) -> None:
    before = streamed.metrics()
    streamed.complete(PROMPTS[0], "batch")
    after = streamed.metrics()
    name = "headrace_step_prediction_error_ratio"
    num_steps = after[f"{name}_count"] - before[f"{name}_count"]
    assert num_steps >= MAX_TOKENS
    near = f'{name}_bucket{{le="0.5"}}'
    assert after[near] - before[near] > num_steps / 2  # on a machine that others use as well


def test_the_ledger_adds_up_to_the_cap(streamed: Served) -> None:
    memory = {k: v for k, v in streamed.metrics().items() if k.startswith("headrace_device_memory_bytes{")}
    assert sum(memory.values()) == DEVICE_MIB * 2**20
    assert memory['headrace_device_memory_bytes{owner="slots"}'] > 0
    assert streamed.metrics()['headrace_host_memory_bytes{owner="weights"}'] > 2**20


def test_a_class_below_its_floor_is_closed_and_says_so(streamed: Served) -> None:
    """At 30 ms a token 2 GB/s carry 60 MB; more than that must be streamed, so no machine can keep realtime open."""
    realtime = streamed.classes()["realtime"]
    assert realtime["open"] is False
    floor = realtime["floor"]
    assert isinstance(floor, dict)
    assert floor["tpot_ms"] > 30
    with pytest.raises(openai.RateLimitError) as refused:
        streamed.complete("Hello", "realtime")
    assert refused.value.code == "slo_infeasible"
    assert refused.value.response.headers["x-should-retry"] == "false"
    for part in ("'realtime' is closed", "30 ms", "/v1/slo"):
        assert part in str(refused.value)
    assert any("class realtime: closed" in line for line in streamed.process.lines)
    key = 'headrace_class_open{slo_class="realtime"}'
    assert streamed.metrics()[key] == 0


def test_a_class_that_is_served_late_is_called_best_effort(streamed: Served) -> None:
    for name, described in streamed.classes().items():
        if not described["open"]:
            continue
        _, headers = streamed.complete("Hello", name)
        assert headers.get("x-slo-best-effort") == ("1" if described["best_effort"] else None)


def test_the_longest_request_is_what_the_plan_holds(streamed: Served) -> None:
    model = httpx.get(f"{streamed.url}/v1/models").json()["data"][0]
    assert 256 <= model["max_model_len"] <= 8192
    with streamed.client as client, pytest.raises(openai.BadRequestError):
        client.completions.create(model="default", prompt=[1] * model["max_model_len"], max_tokens=1)
