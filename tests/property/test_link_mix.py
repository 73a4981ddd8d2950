"""Weights, loads of KV and background work on one link in virtual time: whose bytes come when, and that all do."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from offload.block_transfer import BlockTransfer
from offload.link import LinkError, TransferHandle
from offload.link_book import MIN_SLICE_BYTES
from offload.link_config import LinkConfig
from offload.transfer import Direction, LinkTransfer, Transfer, TransferClass
from tests.fake_link import POISON, FakeLink

WEIGHTS, KV_LOAD, _, BACKGROUND = TransferClass
SLICE_S = 0.01
SPEED = MIN_SLICE_BYTES / SLICE_S
BLOCK_BYTES = 300_000
NUM_BLOCKS = 16
SHARE = 0.25
GENERATOR = torch.Generator().manual_seed(0)
HOST_BLOCKS = torch.randint(0, POISON, (NUM_BLOCKS, BLOCK_BYTES), dtype=torch.uint8, generator=GENERATOR)
SLAB = torch.randint(0, POISON, (4 * MIN_SLICE_BYTES,), dtype=torch.uint8, generator=GENERATOR)


@dataclasses.dataclass(frozen=True)
class Asked:
    """A transfer that is submitted `after_s` after the one before it."""

    transfer_class: TransferClass
    after_s: float
    slack_s: float
    num_bytes: int  # of weights
    ids: tuple[int, ...]  # of blocks
    first_byte: int
    piece_bytes: int
    fails: bool

    def make(self, now_s: float) -> LinkTransfer:
        deadline_s = now_s + self.slack_s
        if self.transfer_class is WEIGHTS:
            source = SLAB[: self.num_bytes]
            return Transfer(Direction.H2D, WEIGHTS, source, torch.zeros_like(source), deadline_s)
        if self.transfer_class is BACKGROUND:
            deadline_s = math.inf
        target = torch.zeros(len(self.ids), BLOCK_BYTES, dtype=torch.uint8)
        return BlockTransfer(
            Direction.H2D, self.transfer_class, HOST_BLOCKS, self.ids, target, tuple(range(len(self.ids))),
            self.first_byte, self.piece_bytes, deadline_s,
        )  # fmt: skip


@st.composite
def asked(draw: st.DrawFn) -> Asked:
    first_byte = draw(st.integers(0, BLOCK_BYTES - 1))
    return Asked(
        draw(st.sampled_from((WEIGHTS, KV_LOAD, BACKGROUND))),
        draw(st.sampled_from([0.0, 0.0, 0.004, 0.05])),
        draw(st.sampled_from([-1.0, 0.02, 1.0, 1e6, math.inf])),
        draw(st.integers(1, len(SLAB))),
        tuple(draw(st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=6))),
        first_byte,
        draw(st.integers(1, BLOCK_BYTES - first_byte)),
        draw(st.sampled_from([False, False, False, True])),
    )


@dataclasses.dataclass(frozen=True)
class Carried:
    """A slice as it went over the wire."""

    handle: TransferHandle
    start_s: float
    end_s: float
    num_bytes: int

    @property
    def transfer_class(self) -> TransferClass:
        return self.handle.transfer.transfer_class


class WatchedLink(FakeLink):
    """Remembers its slices, and when each transfer was submitted."""

    def __init__(self) -> None:
        super().__init__(SPEED, config=LinkConfig(SPEED, SPEED, min_kv_link_share=SHARE, max_kv_link_share=SHARE))
        self.carried: list[Carried] = []
        self.submitted_s: dict[TransferHandle, float] = {}

    def submit_now(self, asked: Asked) -> TransferHandle:
        now_s = self.now_s()
        handle = self.submit(asked.make(now_s))
        self.submitted_s[handle] = now_s
        return handle

    def _arrive(self, flight) -> None:  # type: ignore[no-untyped-def]
        taken = flight.taken
        self.carried.append(Carried(taken.queued.handle, flight.start_s, flight.end_s, taken.num_bytes))
        super()._arrive(flight)


def run(mix: list[Asked]) -> WatchedLink:
    link = WatchedLink()
    for each in mix:
        link.advance(each.after_s)
        handle = link.submit_now(each)
        if each.fails:
            link.fail(handle, OSError("a page is gone"))
        link.check()
    link.advance_to_idle()
    link.check()
    return link


def expected(transfer: LinkTransfer) -> Tensor:
    """The target, from the definition of what was asked for."""
    if isinstance(transfer, Transfer):
        return transfer.source
    assert isinstance(transfer, BlockTransfer)
    rows = torch.zeros_like(transfer.target)
    part = slice(transfer.first_byte, transfer.first_byte + transfer.piece_bytes)
    for row, source_id in enumerate(transfer.source_ids):
        rows[row, part] = HOST_BLOCKS[source_id, part]
    return rows


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(asked(), min_size=1, max_size=14))
def test_every_byte_of_every_piece_arrives_once_and_errors_stay_with_their_transfer(mix: list[Asked]) -> None:
    link = run(mix)
    for each, handle in zip(mix, link.submitted_s, strict=True):
        slices = [carried for carried in link.carried if carried.handle is handle]
        num_bytes = sum(carried.num_bytes for carried in slices)
        assert handle.is_done and link.completed.count(handle) == 1
        if each.fails:
            assert isinstance(handle.failed, OSError) and len(slices) == 1, "nothing more of it is copied"
            with pytest.raises(LinkError, match="a page is gone"):
                handle.wait()
        else:
            assert handle.failed is None and num_bytes == handle.transfer.num_bytes
            assert torch.equal(handle.transfer.target, expected(handle.transfer))


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(asked(), min_size=2, max_size=16))
def test_background_work_holds_up_nobody_for_more_than_a_slice(mix: list[Asked]) -> None:
    link = run(mix)
    for handle, submitted_s in link.submitted_s.items():
        if handle.transfer.transfer_class is BACKGROUND:
            continue
        assert handle.finished_s is not None
        meanwhile = [
            carried
            for carried in link.carried
            if carried.transfer_class is BACKGROUND
            and submitted_s < carried.end_s
            and carried.start_s < handle.finished_s
        ]
        assert len(meanwhile) <= 1 and all(carried.start_s <= submitted_s for carried in meanwhile)
    for one, next_one in itertools.pairwise(link.carried):
        waits_s = next_one.start_s - one.end_s
        assert waits_s == pytest.approx(0.0, abs=1e-9) or all(
            not (submitted_s < next_one.start_s and handle.finished_s > one.end_s + 1e-9)  # type: ignore[operator]
            for handle, submitted_s in link.submitted_s.items()
        ), "the link is idle while something waits"


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(asked(), min_size=2, max_size=16), st.integers(0, 12))
def test_weights_hold_up_kv_no_longer_than_its_share_takes(mix: list[Asked], num_late_weights: int) -> None:
    late = Asked(WEIGHTS, 0.0, -1e9, len(SLAB), (), 0, 1, fails=False)
    link = run([late] * num_late_weights + mix)
    loads = [handle for handle in link.submitted_s if handle.transfer.transfer_class is KV_LOAD]
    for start_s, end_s in _busy_spans([(link.submitted_s[handle], handle.finished_s or 0.0) for handle in loads]):
        slices = [carried for carried in link.carried if start_s <= carried.start_s < end_s - 1e-9]
        num_bytes = sum(carried.num_bytes for carried in slices if carried.transfer_class is KV_LOAD)
        # The slice under way first; then KV is behind its share by what one slice of either may take of it.
        at_most_bytes = MIN_SLICE_BYTES + (num_bytes + (1 + SHARE) * MIN_SLICE_BYTES) / SHARE
        assert end_s - start_s <= at_most_bytes / SPEED + 1e-9


def _busy_spans(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union, as spans that do not touch."""
    merged: list[tuple[float, float]] = []
    for start_s, end_s in sorted(spans):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((start_s, end_s))
    return merged


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(asked(), min_size=3, max_size=14))
def test_urgent_kv_passes_all_but_the_slice_under_way(mix: list[Asked]) -> None:
    link = WatchedLink()
    for each in mix:
        link.advance(each.after_s)
        link.submit_now(each)
    submitted_s = link.now_s()
    urgent = dataclasses.replace(mix[0], transfer_class=KV_LOAD, slack_s=-1e9)
    handle = link.submit_now(urgent)
    link.advance_to_idle()
    first = next(carried for carried in link.carried if carried.handle is handle)
    assert first.start_s <= submitted_s + SLICE_S + 1e-9
    assert handle.finished_s is not None
    assert handle.finished_s - first.start_s == pytest.approx(handle.transfer.num_bytes / SPEED)
