from pathlib import Path

import pytest

from engine.processors import available_processors, compute_threads


@pytest.mark.parametrize(("cpu_max", "expected"), [("100000 100000", 1), ("50000 100000", 1), ("garbage", None)])
def test_a_containers_quota_caps_the_processors(cpu_max: str, expected: int | None, tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(cpu_max + "\n")
    unlimited = available_processors(tmp_path / "none")
    assert available_processors(path) == (unlimited if expected is None else expected)


def test_no_quota_leaves_the_affinity_mask(tmp_path: Path) -> None:
    path = tmp_path / "cpu.max"
    path.write_text("max 100000\n")
    assert available_processors(path) == available_processors(tmp_path / "none") >= 1


def test_compute_threads_prefer_the_option_then_the_environment() -> None:
    assert compute_threads(3, {"OMP_NUM_THREADS": "5"}) == 3
    assert compute_threads(None, {"OMP_NUM_THREADS": "5"}) == 5
    assert compute_threads(None, {"OMP_NUM_THREADS": "4,2"}) == compute_threads(None, {}) >= 1
