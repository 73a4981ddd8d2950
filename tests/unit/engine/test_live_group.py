"""What the scheduler is told of a group."""

from __future__ import annotations

import msgspec

from engine.live_group import build_group
from tests.engine_harness import add_group


def test_all_choices_of_a_group_are_its_tenants() -> None:
    message = msgspec.structs.replace(add_group("g", (5, 6, 7), (8, 9), n=2), tenant="somebody")
    _, specs = build_group(message, frozenset(), block_size=4)
    assert [spec.tenant for spec in specs] == ["somebody"] * 4
    assert [spec.leader_id is None for spec in specs] == [True, False, True, False]
