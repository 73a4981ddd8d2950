"""Streamed weights in /metrics and /v1/slo: complete from the start, true to each message, and on through restarts."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.messages import ClassFloorStats, LinkDirectionStats, OffloadStats, Ready, StepOutputs
from scheduler.slo import SLOClasses
from server.metrics import Metrics
from server.slo_report import build_slo_report
from tests.fake_async_engine import fake_stats

CLASSES = SLOClasses()
READY = Ready(
    max_model_len=2048, model_max_len=2048, vocab_size=100, eos_token_ids=(0,), block_size=16, num_blocks=100,
    dtype="float32", device="cpu", weights_bytes=1, kv_cache_bytes=1, threads=1, load_s=1.0,
)  # fmt: skip


def link(**weights: float) -> LinkDirectionStats:
    """Whose weights have moved so far; everything else is 1 or nothing."""
    return LinkDirectionStats(
        p50_bytes_per_s=2e9,
        p5_bytes_per_s=1.5e9,
        is_derated=False,
        num_drops=int(weights.get("drops", 0)),
        num_bytes={"weights": int(weights.get("num_bytes", 0)), "background": 7, "kv_load": 11, "kv_store": 13},
        busy_s={"weights": weights.get("busy_s", 0.0)},
        num_late_slices={"weights": int(weights.get("late", 0))},
        num_failed={"weights": int(weights.get("failed", 0))},
    )


def floor(name: str, is_open: bool, is_best_effort: bool, max_streamed_layers: int | None) -> ClassFloorStats:
    return ClassFloorStats(
        name=name, is_open=is_open, is_best_effort=is_best_effort, floor_ttft_s=0.9, floor_tpot_s=0.084,
        max_streamed_layers=max_streamed_layers,
    )  # fmt: skip


FLOORS = (
    floor("realtime", False, False, None),
    floor("standard", True, True, None),
    floor("batch", True, False, 30),
)


def offload(**changes: object) -> OffloadStats:
    made = OffloadStats(
        num_layers=30, num_streamed_layers=20, num_slots=2, num_steps=1, num_weight_bytes=100, num_loads=20,
        hidden_s=0.25, exposed_s=0.5, compute_s=0.6, quiet_compute_s=0.4,
        num_raised=3, num_lowered=1, num_replans=1, h2d=link(num_bytes=1000, busy_s=0.5),
        d2h=link(), ledger={"kv": 60, "slots": 30, "free": 10}, host_bytes=500, classes=FLOORS,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def step(step_id: int, stats: OffloadStats | None) -> StepOutputs:
    return StepOutputs(stats=msgspec.structs.replace(fake_stats(step_id), offload=stats))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CLASSES, "tiny")


def value(metrics: Metrics, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}[
        f"headrace_{name}", frozenset(labels.items())
    ]


def test_every_class_and_kind_is_there_before_anything_moved(metrics: Metrics) -> None:
    for direction in ("h2d", "d2h"):
        for kind in ("weights", "kv"):
            assert value(metrics, "offload_bytes_total", direction=direction, kind=kind) == 0
    for name in CLASSES.names:
        assert value(metrics, "class_open", slo_class=name) == 1
        assert value(metrics, "class_best_effort", slo_class=name) == 0
    for name in ("weight_loads", "hidden_seconds", "exposed_seconds", "replans"):
        assert value(metrics, f"offload_{name}_total") == 0


def test_one_message_is_shown_as_it_is(metrics: Metrics) -> None:
    metrics.on_step(step(1, offload(h2d=link(num_bytes=1000, busy_s=0.5, late=4, failed=1, drops=2))))
    assert value(metrics, "offload_bytes_total", direction="h2d", kind="weights") == 1007, "copies back are weights too"
    assert value(metrics, "offload_bytes_total", direction="h2d", kind="kv") == 24
    assert value(metrics, "offload_bytes_total", direction="d2h", kind="weights") == 0
    assert value(metrics, "offload_bytes_total", direction="d2h", kind="kv") == 31, "blocks stored in the background"
    assert value(metrics, "offload_link_busy_seconds_total", direction="h2d", kind="weights") == 0.5
    assert value(metrics, "offload_late_slices_total", direction="h2d", kind="weights") == 4
    assert value(metrics, "offload_failed_copies_total", direction="h2d", kind="weights") == 1
    assert value(metrics, "offload_link_drops_total", direction="h2d") == 2
    assert value(metrics, "offload_link_drops_total", direction="d2h") == 0
    assert value(metrics, "offload_weight_loads_total") == 20
    assert value(metrics, "offload_hidden_seconds_total") == 0.25
    assert value(metrics, "offload_exposed_seconds_total") == 0.5
    assert value(metrics, "offload_compute_seconds_total") == 0.6
    assert value(metrics, "offload_quiet_compute_seconds_total") == 0.4
    assert value(metrics, "offload_layer_moves_total", to="host") == 3
    assert value(metrics, "offload_layer_moves_total", to="device") == 1
    assert value(metrics, "offload_layers", place="host") == 20
    assert value(metrics, "offload_layers", place="device") == 10
    assert value(metrics, "offload_link_bytes_per_second", direction="h2d", quantile="p5") == 1.5e9
    assert sum(value(metrics, "device_memory_bytes", owner=owner) for owner in ("kv", "slots", "free")) == 100
    assert value(metrics, "host_memory_bytes", owner="weights") == 500
    assert value(metrics, "class_open", slo_class="realtime") == 0
    assert value(metrics, "class_open", slo_class="interactive") == 1, "nothing is known of its floor"
    assert value(metrics, "class_best_effort", slo_class="standard") == 1
    assert value(metrics, "class_floor_seconds", slo_class="batch", target="tpot") == 0.084


def test_counters_go_on_through_a_restart_announced_or_not(metrics: Metrics) -> None:
    metrics.on_step(step(1, offload()))
    metrics.on_step(step(2, offload(num_loads=50, h2d=link(num_bytes=3000), num_raised=4)))
    assert value(metrics, "offload_weight_loads_total") == 50
    metrics.on_engine_died()
    metrics.on_engine_ready(msgspec.structs.replace(READY, offload=offload(num_loads=60, num_raised=0)))
    assert value(metrics, "offload_weight_loads_total") == 110, "more than before: all of it is new all the same"
    assert value(metrics, "offload_bytes_total", direction="h2d", kind="weights") == 3007 + 1007
    assert value(metrics, "offload_layer_moves_total", to="host") == 4
    metrics.on_step(step(1, offload(num_loads=5)))
    assert value(metrics, "offload_weight_loads_total") == 115, "a total that fell began anew"


def test_the_warm_up_is_counted_once(metrics: Metrics) -> None:
    metrics.on_engine_ready(msgspec.structs.replace(READY, offload=offload()))
    metrics.on_step(step(1, offload()))
    assert value(metrics, "offload_weight_loads_total") == 20
    assert value(metrics, "offload_exposed_seconds_total") == 0.5
    assert value(metrics, "offload_compute_seconds_total") == 0.6
    assert value(metrics, "offload_quiet_compute_seconds_total") == 0.4


def test_a_class_that_opens_again_is_shown_open(metrics: Metrics) -> None:
    metrics.on_step(step(1, offload()))
    opened = tuple(msgspec.structs.replace(each, is_open=True, is_best_effort=False) for each in FLOORS)
    metrics.on_step(step(2, offload(classes=opened)))
    for name in CLASSES.names:
        assert value(metrics, "class_open", slo_class=name) == 1
        assert value(metrics, "class_best_effort", slo_class=name) == 0


def test_an_engine_without_streaming_changes_nothing(metrics: Metrics) -> None:
    before = metrics.render().decode()
    metrics.on_step(step(1, None))
    changed = set(metrics.render().decode().splitlines()).symmetric_difference(before.splitlines())
    assert changed
    assert not [line for line in changed if "offload" in line or "class_open" in line or "memory_bytes" in line]


def test_the_report_shows_floors_and_what_is_closed(metrics: Metrics) -> None:
    metrics.on_step(step(1, offload()))
    classes = build_slo_report(CLASSES, metrics, "deadline")["classes"]
    assert isinstance(classes, list)
    shown = {each["name"]: (each["open"], each["best_effort"], each["floor"]) for each in classes}
    promised = {"ttft_ms": 900.0, "tpot_ms": 84.0}
    assert shown == {
        "realtime": (False, False, promised),
        "interactive": (True, False, None),
        "standard": (True, True, promised),
        "batch": (True, False, promised),
    }
