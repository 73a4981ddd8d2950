"""A link in virtual time under every fault, against what each transfer was asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offload.block_transfer import BlockTransfer
from offload.link import LinkError
from offload.link_book import MIN_SLICE_BYTES
from offload.transfer import Direction, Transfer, TransferClass
from tests.fake_link import POISON, FakeLink

SPEED = MIN_SLICE_BYTES * 100.0
SIZES = [0, 1, 1000, 300_000, MIN_SLICE_BYTES, MIN_SLICE_BYTES + 1, 1_500_000]
SOURCES = torch.randint(0, POISON, (max(SIZES),), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


BLOCKS = SOURCES[: 4 * 300_000].view(4, 300_000)


class LinkMachine(RuleBasedStateMachine):
    """Model: per transfer whether it was made to fail, is held, and how often its end was told."""

    def __init__(self):
        super().__init__()
        self.link = FakeLink(SPEED, 1.5 * SPEED, coupling=0.6)
        self.handles = []
        self.told = {}
        self.failing = set()
        self.held = set()
        self.duplicated = set()
        self.is_over = False

    @property
    def open(self):
        return [handle for handle in self.handles if not handle.is_done]

    @precondition(lambda self: not self.is_over and len(self.handles) < 30)
    @rule(
        size=st.sampled_from(SIZES),
        direction=st.sampled_from(Direction),
        transfer_class=st.sampled_from(TransferClass),
        slack_s=st.sampled_from([-1.0, 0.0, 0.05, 1.0, float("inf")]),
    )
    def submit(self, size, direction, transfer_class, slack_s):
        target = torch.zeros(size, dtype=torch.uint8)
        self._submit(Transfer(direction, transfer_class, SOURCES[:size], target, self.link.now_s() + slack_s))

    @precondition(lambda self: not self.is_over and len(self.handles) < 30)
    @rule(
        ids=st.lists(st.sampled_from(range(4)), max_size=4, unique=True),
        part=st.sampled_from([(0, 300_000), (1000, 299_000), (7, 1)]),
        direction=st.sampled_from(Direction),
        transfer_class=st.sampled_from(TransferClass),
        slack_s=st.sampled_from([0.0, 0.05, float("inf")]),
    )
    def submit_blocks(self, ids, part, direction, transfer_class, slack_s):
        target, deadline_s = torch.zeros_like(BLOCKS), self.link.now_s() + slack_s
        ids = tuple(ids)
        self._submit(BlockTransfer(direction, transfer_class, BLOCKS, ids, target, ids[::-1], *part, deadline_s))

    def _submit(self, transfer):
        handle = self.link.submit(transfer, lambda ended: self.told.update({ended: self.told.get(ended, 0) + 1}))
        self.handles.append(handle)
        assert handle.is_done == (transfer.num_bytes == 0)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.1]))
    def advance(self, seconds):
        before_s = self.link.now_s()
        self.link.advance(seconds)
        assert self.link.now_s() == pytest.approx(before_s + seconds)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def fail(self, data):
        handle = data.draw(st.sampled_from(self.open))
        if handle not in self.held:  # its last slice may have arrived
            self.link.fail(handle, RuntimeError("made to fail"))
            self.failing.add(handle)

    @precondition(lambda self: self.open and not self.is_over)
    @rule(data=st.data())
    def hold(self, data):
        handle = data.draw(st.sampled_from(self.open))
        self.link.hold(handle)
        self.held.add(handle)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        handle = data.draw(st.sampled_from(sorted(self.held, key=self.handles.index)))
        self.held.discard(handle)
        self.link.release(handle)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def duplicate(self, data):
        handle = data.draw(st.sampled_from(self.open))
        self.link.duplicate(handle)
        self.duplicated.add(handle)

    @rule(factor=st.sampled_from([0.5, 1.0, 3.0, 20.0]), direction=st.sampled_from([None, *Direction]))
    def slow_down(self, factor, direction):
        self.link.slow_down(factor, direction)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def wait(self, data):
        handle = data.draw(st.sampled_from(self.open))
        if handle in self.held:
            with pytest.raises(LinkError):
                handle.wait(1000.0)
        elif handle in self.failing:
            with pytest.raises(LinkError, match="made to fail"):
                handle.wait()
        else:
            handle.wait()

    @precondition(lambda self: not self.is_over)
    @rule(dies=st.booleans())
    def end(self, dies):
        if dies:
            self.link.die(SystemExit("killed"))
        else:
            self.link.close()
        self.is_over = True
        self.held.clear()
        assert not self.open, "nobody waits for a link that is over"
        with pytest.raises(LinkError):
            self.link.submit(Transfer(Direction.H2D, TransferClass.WEIGHTS, SOURCES[:1], torch.zeros(1).byte(), 0.0))

    @invariant()
    def books_agree(self):
        self.link.check()

    @invariant()
    def every_end_is_told_once(self):
        for handle in self.handles:
            count = self.told.get(handle, 0)
            if not handle.is_done:
                assert count == 0
            elif handle.transfer.num_bytes:
                assert count == (2 if handle in self.duplicated else 1)

    @invariant()
    def done_means_arrived(self):
        for handle in self.handles:
            transfer = handle.transfer
            if handle.is_done and handle.failed is None:
                assert torch.equal(transfer.target, self._expected(transfer))
            elif handle.is_done:
                assert handle in self.failing or self.is_over

    @staticmethod
    def _expected(transfer):
        if isinstance(transfer, Transfer):
            return transfer.source
        rows = torch.zeros_like(BLOCKS)
        part = slice(transfer.first_byte, transfer.first_byte + transfer.piece_bytes)
        rows[list(transfer.target_ids), part] = BLOCKS[list(transfer.source_ids), part]
        return rows

    @invariant()
    def what_is_counted_is_what_arrived(self):
        status = self.link.snapshot()
        for direction in Direction:
            handles = [handle for handle in self.handles if handle.transfer.direction is direction]
            for name in TransferClass:
                of_class = [handle for handle in handles if handle.transfer.transfer_class is name]
                totals = status.of(direction).totals[name]
                assert totals.num_transfers == sum(handle.is_done for handle in of_class)
                assert totals.num_failed == sum(handle.failed is not None for handle in of_class)
                whole = sum(handle.transfer.num_bytes for handle in of_class if handle.is_done and not handle.failed)
                assert whole <= totals.num_bytes <= sum(handle.transfer.num_bytes for handle in of_class)


TestLinkMachine = LinkMachine.TestCase
TestLinkMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)
