"""Two runs, pair by pair: each difference recomputed by other means, and every verdict."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from loadgen.bootstrap import Bootstrap
from loadgen.compare import ATTAINMENT, METRICS, MIN_PAIRS_P99, Comparison, Finding, compare_pairs, compare_unpaired
from loadgen.config import BenchError
from loadgen.mcnemar import mcnemar_exact
from loadgen.saved_run import SavedRequest, SavedRun, read_saved_run
from loadgen.trace import TraceEnd
from tests.saved_runs import Answer, save_run

FEW = Bootstrap(num_resamples=400)


def _compare(tmp_path: Path, first: Sequence[Answer], second: Sequence[Answer], *, paired: bool = True) -> Comparison:
    runs = [
        read_saved_run(save_run(tmp_path / f"{name}.json", answers))
        for name, answers in (("first", first), ("second", second))
    ]
    return (compare_pairs if paired else compare_unpaired)(*runs, FEW)


def _late(share: float, num: int, seed: int, slo_class: str = "a") -> list[Answer]:
    rng = random.Random(seed)
    return [Answer(slo_class, 1.5 if rng.random() < share else 0.5) for _ in range(num)]


def _finding(comparison: Comparison, name: str) -> Finding:
    return {row.name: row.finding for row in comparison.rows}[name]


def test_every_number_is_that_of_the_pairs(tmp_path: Path) -> None:
    rng = random.Random(0)
    first = [Answer("ab"[k % 2], rng.uniform(0.1, 1.4), rng.uniform(0.01, 0.05)) for k in range(60)]
    second = [Answer("ab"[k % 2], rng.uniform(0.1, 1.4), rng.uniform(0.01, 0.05)) for k in range(60)]
    second[3] = Answer("b", 0.1, end=TraceEnd.REFUSED)
    found = _compare(tmp_path, first, second)
    assert [row.name for row in found.rows] == [f"{metric}.{name}" for name in ("a", "b", "all") for metric in METRICS]
    assert (found.num_pairs, found.num_alone) == (60, 0)
    for name, wanted in (("a", {"a"}), ("b", {"b"}), ("all", {"a", "b"})):
        pairs = [(x, y) for x, y in zip(first, second, strict=True) if x.slo_class in wanted]
        met = [(x.ttft_s <= 1.0, y.ttft_s <= 1.0 and y.end is TraceEnd.COMPLETED) for x, y in pairs]
        row = found.find(ATTAINMENT, name)
        assert row is not None and row.difference is not None and row.num_first == len(pairs)
        assert row.difference.change == pytest.approx(np.mean([y for _, y in met]) - np.mean([x for x, _ in met]))
        assert row.p_value == mcnemar_exact(sum(x > y for x, y in met), sum(x < y for x, y in met))
        both = [(x, y) for x, y in pairs if y.end is TraceEnd.COMPLETED]
        for metric, field, quantile in (("ttft_p50", "ttft_s", 0.5), ("tpot_p99", "tpot_s", 0.99)):
            row = found.find(metric, name)
            assert row is not None and row.difference is not None and row.num_first == len(both)
            ends = [float(np.quantile([getattr(pair[side], field) for pair in both], quantile)) for side in (0, 1)]
            assert [row.difference.first, row.difference.second] == pytest.approx(ends, abs=5e-6)
            assert row.relative_change == pytest.approx(ends[1] / ends[0] - 1.0, abs=1e-4)


def test_better_worse_and_no_difference(tmp_path: Path) -> None:
    few_late, many_late = _late(0.05, 200, 1), _late(0.4, 200, 2)
    assert _compare(tmp_path, many_late, few_late).verdict is Finding.BETTER
    assert _compare(tmp_path, few_late, many_late).verdict is Finding.WORSE
    assert _compare(tmp_path, few_late, _late(0.05, 200, 3)).verdict is Finding.NO_DIFFERENCE
    same = _compare(tmp_path, few_late, few_late)
    assert same.verdict is Finding.NO_DIFFERENCE
    assert {row.finding for row in same.rows if row.difference} == {Finding.NO_DIFFERENCE, Finding.TOO_FEW}


def test_one_class_better_and_another_worse_is_mixed(tmp_path: Path) -> None:
    first = [*_late(0.0, 100, 1, "a"), *_late(0.6, 100, 2, "b")]
    second = [*_late(0.6, 100, 3, "a"), *_late(0.0, 100, 4, "b")]
    found = _compare(tmp_path, first, second)
    assert (_finding(found, "attainment.a"), _finding(found, "attainment.b")) == (Finding.WORSE, Finding.BETTER)
    assert found.verdict is Finding.MIXED


def test_few_pairs_are_too_few_and_a_p99_needs_more(tmp_path: Path) -> None:
    assert _compare(tmp_path, _late(0.0, 29, 0), _late(1.0, 29, 0)).verdict is Finding.TOO_FEW
    assert _compare(tmp_path, _late(0.0, 30, 0), _late(1.0, 30, 0)).verdict is Finding.WORSE
    for num, expected in ((MIN_PAIRS_P99 - 1, Finding.TOO_FEW), (MIN_PAIRS_P99, Finding.WORSE)):
        found = _compare(tmp_path, _late(0.0, num, 0), _late(1.0, num, 0))
        assert _finding(found, "ttft_p99.a") is expected
        assert _finding(found, "ttft_p50.a") is Finding.WORSE


def test_five_discordant_pairs_are_no_difference_though_the_bootstrap_alone_says_so(tmp_path: Path) -> None:
    first = [Answer()] * 40
    found = _compare(tmp_path, first, [*[Answer(ttft_s=1.5)] * 5, *first[5:]])
    row = found.find(ATTAINMENT, "a")
    assert row is not None and row.difference is not None and row.p_value == pytest.approx(1 / 16)
    assert row.difference.interval.high < 0.0
    assert row.finding is Finding.NO_DIFFERENCE


def test_the_chance_of_a_false_finding_is_about_what_is_promised() -> None:
    """Runs of the same server: at most some of a hundred are called different."""
    rng = random.Random(0)

    def run() -> SavedRun:
        met = [rng.random() < 0.7 for _ in range(120)]
        return SavedRun("x", {}, (), tuple(SavedRequest(k, "a", None, met[k], None, None, ()) for k in range(120)))

    called = [_finding(compare_pairs(run(), run(), Bootstrap(200)), "attainment.a") for _ in range(100)]
    assert called.count(Finding.NO_DIFFERENCE) >= 90


def test_requests_without_a_partner_are_left_out_and_counted(tmp_path: Path) -> None:
    found = _compare(tmp_path, [Answer()] * 50, [Answer()] * 35)
    assert (found.num_pairs, found.num_alone) == (35, 15)


def test_rows_of_other_classes_are_refused_unless_unpaired(tmp_path: Path) -> None:
    first, second = [Answer("a"), Answer("b")] * 30, [Answer("b"), Answer("a")] * 30
    with pytest.raises(BenchError, match=r"request 0 is of class 'a' in .* and of 'b' in .* --unpaired"):
        _compare(tmp_path, first, second)
    assert _compare(tmp_path, first, second, paired=False).verdict is Finding.NO_DIFFERENCE


def test_unpaired_runs_may_have_any_length(tmp_path: Path) -> None:
    first, second = _late(0.05, 300, 1), _late(0.5, 80, 2)
    found = _compare(tmp_path, first, second, paired=False)
    row = found.find(ATTAINMENT, "a")
    assert row is not None and row.difference is not None
    assert (row.num_first, row.num_second, row.p_value) == (300, 80, None)
    shares = [sum(answer.ttft_s <= 1.0 for answer in run) / len(run) for run in (first, second)]
    assert [row.difference.first, row.difference.second] == pytest.approx(shares)
    assert found.verdict is Finding.WORSE


def test_other_targets_are_noticed(tmp_path: Path) -> None:
    first, second = ([Answer(told_ttft_s=told)] * 30 for told in (0.9, 0.8))
    assert _compare(tmp_path, first, second).has_other_targets
    assert not _compare(tmp_path, first, first).has_other_targets


@pytest.mark.parametrize("paired", [True, False])
def test_the_cached_share_of_the_prompts_is_that_of_each_run(tmp_path: Path, paired: bool) -> None:
    rng = random.Random(5)
    runs = [
        [
            Answer("ab"[k % 2], num_prompt_tokens=(size := rng.randint(1, 400)), num_cached_tokens=int(size * part))
            for k in range(40)
        ]
        for part in (0.125, 0.75)
    ]
    found = _compare(tmp_path, *runs, paired=paired)
    assert [share.slo_class for share in found.cached] == ["a", "b", "all"]
    for share in found.cached:
        for side, told in zip(runs, (share.first, share.second), strict=True):
            kept = [answer for answer in side if share.slo_class in (answer.slo_class, "all")]
            assert told == pytest.approx(
                sum(a.num_cached_tokens or 0 for a in kept) / sum(a.num_prompt_tokens or 0 for a in kept)
            )
    assert found.cache_difference is not None and found.cache_difference.differs
    assert found.verdict is Finding.NO_DIFFERENCE, "no verdict is of the cache"


def test_a_cache_that_held_as_much_is_no_difference(tmp_path: Path) -> None:
    warm, cold = ([Answer(num_prompt_tokens=100, num_cached_tokens=num)] * 30 for num in (54, 50))
    assert _compare(tmp_path, warm, cold).cache_difference is None
    silent = [Answer()] * 30
    assert _compare(tmp_path, warm, silent).cached == ()


def test_where_nothing_is_judged_latencies_decide(tmp_path: Path) -> None:
    first, second = ([Answer("a", ttft_s, end=TraceEnd.COMPLETED)] * 40 for ttft_s in (0.2, 0.4))
    runs = []
    for name, answers in (("first", first), ("second", second)):
        text = (
            save_run(tmp_path / f"{name}.json", answers)
            .read_text()
            .replace('"outcome": "met"', '"outcome": "unjudged"')
        )
        (tmp_path / f"{name}.json").write_text(text)
        runs.append(read_saved_run(tmp_path / f"{name}.json"))
    found = compare_pairs(*runs, FEW)
    assert found.find(ATTAINMENT, "a") is not None and found.verdict is Finding.WORSE
