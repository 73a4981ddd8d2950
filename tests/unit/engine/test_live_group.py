"""What the scheduler is told of a group."""

from __future__ import annotations

import msgspec

from engine.live_group import build_group
from scheduler.output import Admission
from tests.engine_harness import add_group


def test_all_choices_of_a_group_are_its_tenants() -> None:
    message = msgspec.structs.replace(add_group("g", (5, 6, 7), (8, 9), n=2), tenant="somebody")
    _, specs = build_group(message, frozenset(), block_size=4)
    assert [spec.tenant for spec in specs] == ["somebody"] * 4
    assert [spec.leader_id is None for spec in specs] == [True, False, True, False]


def test_all_choices_of_a_group_keep_their_blocks_as_the_client_asked() -> None:
    message = add_group("g", (5, 6, 7), (8, 9), n=2)
    _, plain = build_group(message, frozenset(), block_size=4)
    _, keyed = build_group(msgspec.structs.replace(message, retention=2), frozenset(), block_size=4)
    assert [spec.retention for spec in plain] == [1] * 4
    assert [spec.retention for spec in keyed] == [2] * 4


def test_cached_tokens_are_summed_by_tier_over_prompts_not_over_choices() -> None:
    group, _ = build_group(add_group("g", (5, 6, 7), (8, 9), n=2), frozenset(), block_size=4)
    first = group.admit(group.choices[0], _admission("g/0", num_cached=12, num_host=4, num_disk=8))
    again = group.admit(group.choices[1], _admission("g/1", num_cached=12, num_host=4, num_disk=8))
    second = group.admit(group.choices[2], _admission("g/2", num_cached=8, num_host=1, num_disk=2))
    assert again is None, "of the same prompt: its tokens count once"
    assert first is not None and second is not None
    assert (first.num_cached_tokens, first.num_host_cached_tokens, first.num_disk_cached_tokens) == (12, 4, 8)
    assert (second.num_cached_tokens, second.num_host_cached_tokens, second.num_disk_cached_tokens) == (20, 5, 10)


def _admission(request_id: str, *, num_cached: int, num_host: int, num_disk: int) -> Admission:
    return Admission(
        request_id=request_id,
        group_id="g",
        num_cached_tokens=num_cached,
        ttft_target_s=1.0,
        tpot_target_s=0.1,
        num_host_cached_tokens=num_host,
        num_disk_cached_tokens=num_disk,
    )
