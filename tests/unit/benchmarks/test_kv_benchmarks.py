"""The benchmarks of KV tiers without a server: what is asked, where two costs cross, how choices are judged."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.kv_multi_turn import Script
from benchmarks.kv_overflow import CLASSES, Shape, patient_classes
from benchmarks.kv_preemption_rig import Predicted, Restored
from benchmarks.kv_serving import Texts, gained, loads_per_compute, sample, table
from benchmarks.kv_swap_crossover import Cell, check, crossing, verdict
from scheduler.slo import SLOClasses
from server.slo_table import load_slo_classes


def restored(swap_s: float, recompute_s: float, total_s: float, num_loaded: int = 0) -> Restored:
    return Restored(total_s / 2, total_s / 2, Predicted(swap_s, recompute_s), num_loaded)


def cell(swap_s: float, recompute_s: float, predicted_swap_s: float, predicted_recompute_s: float) -> Cell:
    predicted = predicted_swap_s, predicted_recompute_s
    return Cell(1.0, 64, (restored(*predicted, swap_s, 3),), (restored(*predicted, recompute_s),))


@pytest.mark.parametrize(("power", "place"), [(-1.0, 3.0), (-0.5, 10.0), (-2.0, 1.5)])
def test_a_power_law_crosses_where_it_is_one(power: float, place: float) -> None:
    ratios = {float(x): (x / place) ** power for x in (1, 2, 4, 8, 16)}
    assert float(crossing(ratios)) == pytest.approx(place, rel=0.01)


def test_costs_that_do_not_cross_say_on_which_side_they_stay() -> None:
    assert crossing({1.0: 2.0, 2.0: 1.5}) == "above 2"
    assert crossing({1.0: 0.5, 2.0: 0.4}) == "below 1"


def test_choices_are_judged_by_what_was_faster_and_by_the_time_they_cost() -> None:
    right, wrong = cell(1.0, 2.0, 1.1, 1.9), cell(1.0, 2.0, 3.0, 2.0)
    text = verdict([right, wrong])
    assert "2 of 4 preemptions (50%)" in text
    assert "take 1.50 times" in text and "the worst 2.00" in text and "at most 2.00 times" in text


def test_a_cell_counts_only_where_the_victim_came_back_as_it_should() -> None:
    assert check(cell(1.0, 1.0, 1.0, 1.0)) is None
    none_loaded = Cell(1.0, 640, (restored(1, 1, 1, 0),), (restored(1, 1, 1, 0),))
    assert "loaded [0] blocks of 39" in (check(none_loaded) or "")
    loaded = Cell(1.0, 64, (restored(1, 1, 1, 3),), (restored(1, 1, 1, 3),))
    assert check(loaded) == "a recomputed victim was loaded"


def test_patient_classes_differ_from_the_built_in_ones_in_that_they_refuse_nobody(tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(patient_classes(), encoding="utf-8")
    patient = load_slo_classes(str(path), None)
    for original in SLOClasses():
        mine = patient.get(original.name)
        assert mine.when_infeasible == "queue"
        for name in ("rank", "ttft_base_s", "ttft_per_1k_tokens_s", "tpot_s", "max_stall_s", "protected", "share"):
            assert getattr(mine, name) == getattr(original, name)


def test_the_longest_request_is_as_long_as_a_chat_becomes() -> None:
    shape = Shape(num_chats=16, num_turns=3, num_first_tokens=400, num_later_tokens=48, num_answer_tokens=48)
    spoken = 400 + 2 * 48 + 3 * 4 * 48
    assert shape.tokens_of_chat("batch") >= spoken and shape.longest_tokens >= shape.tokens_of_chat("batch")
    assert shape.longest_tokens % 16 == 0
    assert shape.mean_tokens <= max(shape.tokens_of_chat(name) for name in CLASSES)
    script = Script(num_turns=5, num_first_tokens=1200, num_later_tokens=32, num_answer_tokens=24)
    assert script.max_tokens >= 1200 + 4 * 32 + 5 * 24 and script.max_tokens % 16 == 0


def test_texts_are_the_same_for_a_seed_and_differ_from_the_first_words_on() -> None:
    texts = Texts()
    assert texts.make("1/0/0", 500) == texts.make("1/0/0", 500) and len(texts.make("1/0/0", 500)) == 500
    assert texts.make("1/0/0", 500)[:8] != texts.make("1/1/0", 500)[:8]


def test_counters_by_label() -> None:
    name = sample("headrace_preemptions_total", restore="swap")
    assert name == 'headrace_preemptions_total{restore="swap"}' and sample("up") == "up"
    assert gained({name: 2.0}, {name: 5.0}, name) == 3.0 and gained({}, {}, name) == 0.0
    assert table(("a", "b"), [["1", "2"]]).splitlines() == ["| a | b |", "|---|---|", "| 1 | 2 |"]


def test_a_card_that_computes_slower_behind_a_like_link_loads_faster_in_proportion() -> None:
    assert loads_per_compute("a10") > loads_per_compute("a100-80") > 1.0
    assert math.isfinite(loads_per_compute("t4"))
