"""Lines about damaged KV blocks."""

from __future__ import annotations

import logging

import pytest

from engine.damage_log import INTERVAL_S, DamageLog


def test_the_first_is_told_at_once_and_the_next_ones_together(caplog: pytest.LogCaptureFixture) -> None:
    log = DamageLog()
    with caplog.at_level(logging.WARNING):
        log.add(0, 0.0)
        assert not caplog.records
        log.add(2, 5.0)
        log.add(3, 6.0)
        log.add(4, 5.0 + INTERVAL_S - 0.1)
        assert [record.args for record in caplog.records] == [(2,)]
        log.add(1, 5.0 + INTERVAL_S)
    assert [record.args for record in caplog.records] == [(2,), (8,)]
