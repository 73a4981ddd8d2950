"""The snapshot crosses into the event log and back."""

from __future__ import annotations

import msgspec

from scheduler.link import NO_LINK, ClassFloor, LinkDirection, LinkSnapshot


def test_snapshot_survives_the_event_log() -> None:
    snapshot = LinkSnapshot(
        h2d=LinkDirection(2e9, 1.5e9, 7, 5, 3, 1),
        d2h=LinkDirection(1e9, 0.5e9),
        coupling=0.8,
        kv_link_share=0.15,
        num_resident_layers=20,
        num_streamed_layers=10,
        num_blocks=99,
        classes=(
            ClassFloor("realtime", is_open=False, ttft_s=1.0, tpot_s=0.1, max_streamed_layers=None),
            ClassFloor("batch", is_best_effort=True, max_streamed_layers=10),
        ),
    )
    data = msgspec.msgpack.encode(snapshot)
    assert msgspec.msgpack.decode(data, type=LinkSnapshot) == snapshot
    assert snapshot.h2d.queued_bytes == 16
    assert hash(snapshot) == hash(msgspec.msgpack.decode(data, type=LinkSnapshot)), "frozen to the last field"


def test_log_of_an_engine_without_a_link_reads_as_no_link() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode({}), type=LinkSnapshot) == NO_LINK
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(NO_LINK), type=LinkSnapshot) == NO_LINK


def test_floor_of_a_class_is_found_by_its_name() -> None:
    floors = (ClassFloor("realtime", is_open=False), ClassFloor("batch"))
    snapshot = LinkSnapshot(classes=floors)
    assert snapshot.floor("batch") == floors[1]
    assert snapshot.floor("mine") is None and NO_LINK.floor("batch") is None


def test_a_served_request_is_late_by_its_class_or_by_a_target_of_its_own() -> None:
    late, in_time = ClassFloor("standard", is_best_effort=True, tpot_s=0.1), ClassFloor("standard", tpot_s=0.1)
    assert late.is_late(None) and not in_time.is_late(None)
    assert not late.is_late(0.2) and in_time.is_late(0.05)
