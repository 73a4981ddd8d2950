"""EngineCore with KV tiers under random arrivals, cancellations, damage and faults: no wrong block is ever served."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.messages import AbortChoices, AddGroup
from engine.replay import replay
from tests.engine_harness import add_group
from tests.fakes import ERROR_TOKEN_ID, fake_output
from tests.tiered_harness import BLOCK_BYTES, TieredHarness

CLASSES = ("realtime", "interactive", "standard", "batch")
NUM_BLOCKS = 12
MAX_PROMPT_TOKENS = 32


class TieredCoreMachine(RuleBasedStateMachine):
    """Every choice ends exactly once, with its prompt's tokens, whatever happens to copies, and the log replays.

    The runner reads every context back from the bytes; a wrong one that is not void ends its request with an error.
    """

    @initialize(
        num_host_slots=st.sampled_from([1, 3, 12, 40]),
        num_disk_blocks=st.sampled_from([0, 2, 40]),
        bytes_per_s=st.sampled_from([1e3, 1e4, 1e9]),
    )
    def start(self, num_host_slots: int, num_disk_blocks: int, bytes_per_s: float) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.directory = Path(self.folder.name)
        self.harness = TieredHarness(
            num_blocks=NUM_BLOCKS,
            num_host_slots=num_host_slots,
            directory=self.directory,
            num_disk_blocks=num_disk_blocks,
            bytes_per_s=bytes_per_s,
            event_log_path=self.directory / "log",
        )
        self.groups: dict[str, AddGroup] = {}
        self.inbox: list[AddGroup | AbortChoices] = []

    @rule(
        num_tokens=st.lists(st.sampled_from([3, 9, 17, 18, 26, MAX_PROMPT_TOKENS]), min_size=1, max_size=2),
        n=st.integers(1, 2),
        first_token=st.sampled_from([20, 20, 60, 80, 100, ERROR_TOKEN_ID]),
        max_tokens=st.integers(0, 12),
        slo_class=st.sampled_from(CLASSES),
        wants_logprobs=st.sampled_from([False, False, True]),
    )
    def arrive(
        self, num_tokens: list[int], n: int, first_token: int, max_tokens: int, slo_class: str, wants_logprobs: bool
    ) -> None:
        """Prompts of few beginnings: one after the other they push each other out and come back."""
        self._add(num_tokens, n, first_token, max_tokens, slo_class, wants_logprobs)

    def _add(
        self, num_tokens: list[int], n: int, first_token: int, max_tokens: int, slo_class: str, wants_logprobs: bool
    ) -> None:
        group = add_group(
            f"g{len(self.groups)}",
            *[(first_token, *range(21, 20 + number)) for number in num_tokens],
            n=n,
            max_tokens=max_tokens,
            slo_class=slo_class,
            arrival_s=self.harness.clock.now_s(),
            num_prompt_logprobs=0 if wants_logprobs else None,
        )
        self.groups[group.group_id] = group
        self.inbox.append(group)

    @rule(first_tokens=st.lists(st.sampled_from([20, 60, 80, 100]), min_size=1, max_size=6), settles=st.booleans())
    def come_back(self, first_tokens: list[int], settles: bool) -> None:
        """One after the other, so that each finds the device full of the others."""
        for first_token in first_tokens:
            self._add([MAX_PROMPT_TOKENS], 1, first_token, 2, "standard", False)
            self._run()
            if settles:
                self.harness.settle()

    @precondition(lambda self: bool(self.groups))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.inbox.append(AbortChoices(group_id=data.draw(st.sampled_from(sorted(self.groups)))))

    @rule(count=st.integers(1, 10), turn_s=st.sampled_from([0.0, 0.001, 0.02]))
    def turns(self, count: int, turn_s: float) -> None:
        self.harness.turn_s = turn_s
        for _ in range(count):
            messages, self.inbox = self.inbox, []
            self.harness.turn(*messages)

    @rule()
    def all_ends(self) -> None:
        """Nothing is left to compute; the tiers go on."""
        self._run()

    @rule(seconds=st.sampled_from([0.01, 1.0, 45.0]))
    def time_passes(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)
        self.harness.link.advance(min(seconds, 1.0))

    @rule(slot=st.none() | st.integers(0, 39), offset=st.integers(0, BLOCK_BYTES - 1))
    def host_memory_rots(self, slot: int | None, offset: int) -> None:
        """One slot or all; before a byte of it moves: what is verified and changes afterwards nobody can know."""
        harness = self.harness
        harness.link.advance_to_idle()
        slots = range(harness.pool.num_slots) if slot is None else [slot % harness.pool.num_slots]
        harness.pool.blocks[list(slots), offset] ^= 0x40

    @rule(period=st.sampled_from([0, 1, 2, 5]))
    def copies_fail(self, period: int) -> None:
        self.harness.link.period = period

    @rule(
        call=st.sampled_from(["write", "read", "rename", "remove"]),
        error=st.sampled_from([None, None, errno.EIO, errno.ENOSPC]),
    )
    def the_disk_fails_or_recovers(self, call: str, error: int | None) -> None:
        self.harness.files.errors.pop(call, None)
        if error is not None:
            self.harness.files.errors[call] = error

    @rule(data=st.data(), is_removed=st.booleans())
    def a_file_is_damaged(self, data: st.DataObject, is_removed: bool) -> None:
        files = sorted(self.directory.rglob("*.kv"))
        if not files:
            return
        file = files[data.draw(st.integers(0, len(files) - 1))]
        if is_removed:
            file.unlink()
            return
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        file.write_bytes(content)

    @invariant()
    def tokens_are_those_of_the_prompt(self) -> None:
        for (group_id, choice), tokens in self.harness.tokens.items():
            group = self.groups[group_id]
            assert tuple(tokens) == fake_output(group.prompts[choice // group.n], len(tokens), choice)

    def teardown(self) -> None:
        self._run()
        self.harness.files.errors.clear()
        self.harness.link.period = 0
        self.harness.settle()
        self.harness.assert_nothing_is_left()
        for group in self.groups.values():
            self._check_end(group)
        self.harness.tiered.close()
        assert self.harness.event_log is not None
        self.harness.event_log.close()
        replay(self.directory / "log")
        self.folder.cleanup()

    def _run(self) -> None:
        self.harness.turn_s = 0.01
        messages, self.inbox = self.inbox, []
        self.harness.run(*messages)

    def _check_end(self, group: AddGroup) -> None:
        harness = self.harness
        if group.group_id in harness.refused:
            return
        has_error = any(ERROR_TOKEN_ID in prompt for prompt in group.prompts)
        for choice in range(len(group.prompts) * group.n):
            key = group.group_id, choice
            reason = harness.finish_reasons[key]
            assert reason in ("abort", "error" if has_error else "length"), f"{key} ended with {reason}"
            if reason == "length":
                assert len(harness.tokens[key]) == group.sampling.max_tokens


TieredCoreMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=25, deadline=None, derandomize=True)
TestTieredCore = TieredCoreMachine.TestCase
