"""Turns a tier off that fails again and again, and tries it with one block after a while."""

from __future__ import annotations

from scheduler.kv_transfer import BlockOutcome, TransferKind
from scheduler.request import BlockHash

MAX_FAILURES = 8
"""Blocks in a row that fail before the tier is off."""
FIRST_OFF_S = 30.0
MAX_OFF_S = 600.0

Operation = tuple[TransferKind, BlockHash]


class TierBreaker:
    """On; off for `FIRST_OFF_S` after `MAX_FAILURES` failures in a row; then one block decides.

    Only FAILED counts against a tier and only DONE for it. A wrong or missing block costs its own entry and is never
    asked for again, a full disk has an answer of its own: neither says whether the next operation would work. If the
    trial fails, the tier is off for twice as long as before, up to `MAX_OFF_S`. What began before the tier went off
    decides nothing any more.
    """

    def __init__(self) -> None:
        self.is_on = True
        self.num_openings = 0
        """How often it went off, failed trials included."""
        self._num_failures = 0  # in a row
        self._now_s = 0.0
        self._off_s = FIRST_OFF_S
        self._off_until_s = 0.0
        self._trial: Operation | None = None

    @property
    def can_try(self) -> bool:
        """Off, for long enough, and no trial is under way: one operation may begin."""
        return not self.is_on and self._trial is None and self._now_s >= self._off_until_s

    @property
    def may_begin(self) -> bool:
        return self.is_on or self.can_try

    def observe(self, now_s: float) -> None:
        """Time has passed; it never runs backwards here."""
        self._now_s = max(self._now_s, now_s)

    def begin(self, kind: TransferKind, block_hash: BlockHash) -> None:
        """An operation on the tier begins; where the tier is off it is the trial.

        Raises:
            ValueError: the tier is off and may not be tried.
        """
        if self.is_on:
            return
        if not self.can_try:
            raise ValueError(f"the tier is off until {self._off_until_s:g} s or its trial is under way; ask may_begin")
        self._trial = (kind, block_hash)

    def end(self, kind: TransferKind, block_hash: BlockHash, outcome: BlockOutcome) -> None:
        """An operation ended."""
        if self.is_on:
            if outcome is BlockOutcome.FAILED:
                self._num_failures += 1
                if self._num_failures >= MAX_FAILURES:
                    self._open(FIRST_OFF_S)
            elif outcome is BlockOutcome.DONE:
                self._num_failures = 0
        elif self._trial == (kind, block_hash):
            self._trial = None
            if outcome is BlockOutcome.FAILED:
                self._open(min(2 * self._off_s, MAX_OFF_S))
            elif outcome is BlockOutcome.DONE:
                self.is_on = True
                self._num_failures = 0

    def _open(self, off_s: float) -> None:
        self.is_on = False
        self.num_openings += 1
        self._off_s = off_s
        self._off_until_s = self._now_s + off_s

    def check(self) -> None:
        """Assert that on and off exclude each other."""
        assert FIRST_OFF_S <= self._off_s <= MAX_OFF_S
        if self.is_on:
            assert self._trial is None and self._num_failures < MAX_FAILURES
        else:
            assert self._trial is None or self._now_s >= self._off_until_s, "tried before its time"
