"""Arrival and expiry of groups."""

import dataclasses

import pytest

from scheduler.groups import Group, GroupTable, check_group
from tests.scheduler_builders import make_group, make_request, make_spec


def group(name: str, expiry_s: float) -> Group:
    return Group(name, "standard", 1.0, expiry_s, {name: make_request(name, 4, 1, arrival_s=1.0)})


def test_groups_expire_in_time_order_unless_started() -> None:
    table = GroupTable()
    groups = {name: group(name, expiry_s) for name, expiry_s in (("a", 9.0), ("b", 3.0), ("c", 3.0), ("d", 2.0))}
    for one in groups.values():
        table.add(one)
    table.start("d")
    table.start("d")
    assert table.next_expiry_s() == 3.0
    assert table.expired(2.9) == []
    assert table.expired(3.0) == [groups["b"], groups["c"]]
    table.remove(groups["b"].members["b"])
    table.remove(groups["c"].members["c"])
    assert table.next_expiry_s() == 9.0 and "b" not in table
    table.check({n: groups[n].members[n] for n in ("a", "d")})


def test_what_an_expired_client_is_told() -> None:
    expiry = group("a", 4.0).expire(5.0, retry_after_s=30.0)
    message = expiry.message
    assert expiry.retry_after_s == 30.0
    assert "4 s" in message and "limit is 3 s" in message and "'standard'" in message and "retry" in message


def test_a_sound_group_passes() -> None:
    check_group((*make_group("g", 3, 8, 2), make_spec("other", 3, 2, group_id="g")))


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ((), "at least one"),
        ((make_spec("a", 4, 1), make_spec("a", 4, 1)), "twice"),
        ((make_spec("a", 4, 1), make_spec("b", 4, 1)), "differs"),
        ((make_spec("a", 0, 1),), "0 prompt tokens"),
        ((make_spec("a", 4, -1),), "-1"),
        ((make_spec("a", 4, 1, leader_id="b"),), "no earlier choice"),
        (make_group("g", 2, 4, 1)[::-1], "no earlier choice"),
        (
            (make_group("g", 1, 4, 1)[0], dataclasses.replace(make_group("g", 2, 4, 1)[1], num_prompt_tokens=5)),
            "no earlier choice",
        ),
    ],
)
def test_a_group_that_contradicts_itself_is_refused(group: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_group(group)
