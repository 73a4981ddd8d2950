"""The dashboards against a real server that streams weights and has KV tiers, under a little load: every metric and
label that they ask for is scraped, and every expression has samples in a real Prometheus with our rules."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kernels.native_library import NativeLibrary
from tests.deploy_files import DEPLOY, ROOT, expressions, fill_in, find_prometheus, load_dashboards
from tests.headrace_process import HeadraceProcess
from tests.prometheus_process import PrometheusProcess
from tests.promql import Selector, read_selectors

pytestmark = pytest.mark.timeout(180)

MODEL = "org/tiny"
ARGUMENTS = (
    "--served-model-name", MODEL, "--dtype", "float32", "--threads", "1", "--max-model-len", "256",
    "--max-num-batched-tokens", "128", "--max-num-seqs", "4", "--device-memory", "2600KiB", "--host-memory", "4MiB",
    "--disk-size", "8MiB",
)  # fmt: skip
CLASSES = ("realtime", "interactive", "standard", "batch")
NUM_CLIENTS = 6
WITHIN_S = 60.0
WINDOW = "10s"
ADDED_BY_PROMETHEUS = {"job", "instance"}
BOARDS = load_dashboards()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, cache_path: Path, native_library: NativeLibrary) -> Iterator[str]:
    """Its URL."""
    from tests.tiny_model import make_tiny_llama  # imports transformers

    model = make_tiny_llama(tmp_path_factory.mktemp("llama"), num_hidden_layers=4)
    disk = tmp_path_factory.mktemp("disk")
    with HeadraceProcess(str(model), *ARGUMENTS, "--disk-path", str(disk), cache_path=cache_path) as process:
        yield process.wait_ready(WITHIN_S)


class Load:
    """Clients that ask, each one request at a time, in all classes, until it is over."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(NUM_CLIENTS)
        self._clients = [self._pool.submit(self._ask, number) for number in range(NUM_CLIENTS)]

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()

    def _ask(self, number: int) -> None:
        """Prompts come again, when others have taken their place on the device."""
        turn = number
        with httpx.Client(base_url=self._url, timeout=60.0) as http:
            while not self._is_over.is_set():
                prompt = [5 + (turn % 9 * 37 + place * place) % 200 for place in range(40 + turn % 9 * 15)]
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
                headers = {"x-slo-class": CLASSES[turn % len(CLASSES)]}
                status = http.post("/v1/completions", json=body, headers=headers).status_code
                assert status in (200, 429, 503), status
                turn += 1


def _wait(holds: Callable[[], bool], tell: Callable[[], object]) -> None:
    deadline_s, pause = time.monotonic() + WITHIN_S, threading.Event()
    while not holds():
        assert time.monotonic() < deadline_s, tell()
        pause.wait(0.25)


def _scrape(url: str) -> dict[str, dict[str, set[str]]]:
    """Values by series' name and label."""
    series: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").raise_for_status().text):
        for sample in family.samples:
            labels = series.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return series


def _missing(selector: Selector, scraped: dict[str, dict[str, set[str]]]) -> str | None:
    """What a query asks for and the server does not have."""
    if selector.name not in scraped:
        return selector.name
    labels = scraped[selector.name]
    for label in selector.labels - ADDED_BY_PROMETHEUS - set(labels):
        return f"{selector.name} without {label}"
    for label, operator, value in selector.matchers:
        if operator == "Equal" and label not in ADDED_BY_PROMETHEUS and value not in labels[label]:
            return f'{selector.name}{{{label}="{value}"}}'
        matches = [re.fullmatch(value, each) for each in labels.get(label, ())]
        if operator == "Re" and label not in ADDED_BY_PROMETHEUS and not any(matches):
            return f'{selector.name}{{{label}=~"{value}"}}'
    return None


def _asked() -> list[Selector]:
    """By dashboards, their variables, and rules."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules" / "headrace.yaml").read_text())
    exprs = [fill_in(expr) for board in BOARDS.values() for _, expr in expressions(board)]
    exprs += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    variables = [each.get("definition", "") for board in BOARDS.values() for each in board["templating"]["list"]]
    exprs += [fill_in(found[1]) for text in variables if (found := re.match(r"label_values\((.*), \w+\)", text))]
    return [selector for expr in exprs for selector in read_selectors(expr)]


def test_every_metric_and_label_is_scraped(server: str) -> None:
    selectors = [each for each in _asked() if not each.is_recorded and each.name != "up"]
    assert len({each.name for each in selectors}) > 60

    def missing() -> set[str]:
        scraped = _scrape(server)
        return {found for each in selectors if (found := _missing(each, scraped)) is not None}

    with Load(server):
        _wait(lambda: not missing(), missing)


def test_a_name_or_a_label_that_is_not_there_is_found(server: str) -> None:
    scraped = _scrape(server)
    for expr, missing in (
        ("headrace_ttft_second_bucket", "headrace_ttft_second_bucket"),
        ("sum by (slo_clas) (headrace_requests_waiting)", "headrace_requests_waiting without slo_clas"),
        ('headrace_promises_total{kept="yes"}', 'headrace_promises_total{kept="yes"}'),
        ('headrace_prompt_tokens_total{source=~"disk"}', 'headrace_prompt_tokens_total{source=~"disk"}'),
    ):
        (selector,) = read_selectors(expr)
        assert _missing(selector, scraped) == missing


def _autoscaler_queries() -> list[str]:
    path = DEPLOY / "kubernetes" / "overlays" / "monitoring" / "scaled_object.yaml"
    triggers = yaml.safe_load(path.read_text())["spec"]["triggers"]
    return [each["metadata"]["query"].replace('job="headrace/headrace"', 'job="headrace"') for each in triggers]


def _has_number(samples: list[dict[str, object]]) -> bool:
    return any(math.isfinite(float(str(sample["value"][1]))) for sample in samples)  # type: ignore[index]


def test_every_expression_has_samples_in_prometheus(server: str, tmp_path: Path) -> None:
    """And what Prometheus counts is what the server counts."""
    program = find_prometheus("prometheus")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    waiting = {(title, fill_in(expr, WINDOW)) for board in BOARDS.values() for title, expr in expressions(board)}
    with PrometheusProcess(program, tmp_path, server.removeprefix("http://"), port) as prometheus:

        def is_done() -> bool:
            waiting.difference_update({each for each in waiting if _has_number(prometheus.query(each[1]))})
            return not waiting

        with Load(server):
            _wait(is_done, lambda: sorted(waiting))
        report = {each["name"]: each for each in httpx.get(f"{server}/v1/slo").json()["classes"]}
        counts = {name: each["counts"]["met"] for name, each in report.items()}

        def counted() -> dict[str, int]:
            samples = prometheus.query('sum by (slo_class) (headrace_requests_slo_total{outcome="met"})')
            return {each["metric"]["slo_class"]: int(each["value"][1]) for each in samples}

        _wait(lambda: counted() == counts, lambda: (counted(), counts))
        assert {(rule["health"], rule.get("lastError", "")) for rule in prometheus.rules()} == {("ok", "")}
        for query in _autoscaler_queries():
            assert len(prometheus.query(query)) == 1, f"{query}: the autoscaler takes one number"
        objectives = prometheus.query("headrace:slo_objective:ratio")
        assert {each["metric"]["slo_class"]: float(each["value"][1]) for each in objectives} == {
            name: each["objective"] for name, each in report.items()
        }


def test_the_image_is_healthy_while_the_server_is_ready(server: str) -> None:
    """The Dockerfile's own command."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    found = re.search(r"^HEALTHCHECK .*? CMD (\[.*\])$", text, re.MULTILINE)
    assert found is not None
    command = [sys.executable, *json.loads(found[1])[1:]]

    def status(port: str) -> int:
        return subprocess.run(command, env={"HEADRACE_PORT": port}, capture_output=True, check=False).returncode

    assert status(server.rpartition(":")[2]) == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = str(free.getsockname()[1])
    assert status(closed) != 0
