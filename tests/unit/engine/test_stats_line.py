import logging

import msgspec
import pytest

from engine.stats import StatsLine
from tests.engine_harness import EngineHarness, add_group


def test_a_line_of_statistics_comes_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="engine.stats")
    harness = EngineHarness()
    stats = harness.run(add_group("g", tuple(range(20, 30)), max_tokens=20)).stats
    line = StatsLine(interval_s=10.0)
    for now_s, num_tokens in ((100.0, 0), (105.0, 50), (110.0, 200), (115.0, 300), (130.0, 400)):
        line.observe(msgspec.structs.replace(stats, generation_tokens=num_tokens), now_s)
    rates = [record.getMessage().split("generation ")[1].split(" ")[0] for record in caplog.records]
    assert rates == ["20", "10"]
