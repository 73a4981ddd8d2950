"""Which part of a run counts."""

from __future__ import annotations

import pytest

from loadgen.phases import Phase, steady_window


def test_without_warm_up_and_cool_down_all_is_steady() -> None:
    window = steady_window(0.0, 0.0, 10.0)
    assert window.length_s == 10.0
    assert {window.phase_of(offset_s) for offset_s in (0.0, 5.0, 10.0)} == {Phase.STEADY}


def test_the_window_holds_its_start_and_not_its_end() -> None:
    window = steady_window(2.0, 3.0, 10.0)
    assert window.length_s == 5.0
    assert [window.phase_of(offset_s) for offset_s in (1.9, 2.0, 6.9, 7.0)] == [
        *(Phase.WARM_UP, Phase.STEADY, Phase.STEADY, Phase.COOL_DOWN)
    ]


@pytest.mark.parametrize("arrival_window_s", [None, 0.0, 5.0])
def test_a_run_shorter_than_its_margins_has_no_length(arrival_window_s: float | None) -> None:
    assert steady_window(2.0, 3.0, arrival_window_s).length_s is None
