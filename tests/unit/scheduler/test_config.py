"""Bounds of the configuration, and what the classes promise."""

import dataclasses

import pytest

from scheduler.config import SchedulerConfig
from scheduler.slo import SLO, SLOClasses


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(SchedulerConfig) if f.metadata.get("min") is not None]
)
def test_a_value_below_its_bound_is_named(name: str) -> None:
    low = SchedulerConfig.__dataclass_fields__[name].metadata["min"]
    with pytest.raises(ValueError, match=f"{name} is {low - 1}, it must be at least {low}"):
        SchedulerConfig(**{name: low - 1})


def test_every_running_request_must_find_a_token_in_a_step() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens \(8\) must be at least max_num_seqs \(9\)"):
        SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=9)


def test_a_clients_own_targets_replace_the_classs() -> None:
    standard = SLOClasses().get("standard")
    by_class, own = SLO("standard", "standard"), SLO("standard", "standard", 0.5, 0.01, 7.0)
    assert by_class.ttft_target_s(standard, 2000) == pytest.approx(3.6)
    assert (own.ttft_target_s(standard, 2000), own.tpot_target_s(standard)) == (0.5, 0.01)
    assert by_class.tpot_target_s(standard) == standard.tpot_s
    assert (by_class.start_limit_s(standard), own.start_limit_s(standard)) == (standard.max_wait_s, 7.0)
