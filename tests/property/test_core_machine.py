"""EngineCore under random arrivals, cancellations and faults, with a pool that is too small."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.messages import AbortChoices, AddGroup
from engine.replay import replay
from tests.engine_harness import EngineHarness, add_group
from tests.fakes import CRASH_TOKEN_ID, ERROR_TOKEN_ID, fake_output

CLASSES = ("realtime", "interactive", "standard", "batch")


class CoreMachine(RuleBasedStateMachine):
    """Every choice ends exactly once, with a prefix of its prompt's tokens, and the log replays.

    The harness checks the invariants after each turn, the runner every context that it reads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.log_path = Path(self.directory.name) / "log"
        self.harness = EngineHarness(
            num_blocks=16, max_num_batched_tokens=12, max_num_seqs=4, event_log_path=self.log_path
        )
        self.groups: dict[str, AddGroup] = {}
        self.inbox: list[AddGroup | AbortChoices] = []

    @rule(
        num_tokens=st.lists(st.integers(1, 20), min_size=1, max_size=2),
        n=st.integers(1, 3),
        first_token=st.sampled_from([20, 20, 20, 60, CRASH_TOKEN_ID, ERROR_TOKEN_ID]),
        max_tokens=st.integers(0, 12),
        slo_class=st.sampled_from(CLASSES),
        wants_logprobs=st.booleans(),
    )
    def add(
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

    @precondition(lambda self: bool(self.groups))
    @rule(data=st.data(), choices=st.none() | st.lists(st.integers(0, 5), max_size=3).map(tuple))
    def abort(self, data: st.DataObject, choices: tuple[int, ...] | None) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.groups)))
        self.inbox.append(AbortChoices(group_id=group_id, choices=choices))

    @rule(count=st.integers(1, 8))
    def turns(self, count: int) -> None:
        for _ in range(count):
            messages, self.inbox = self.inbox, []
            self.harness.turn(*messages)

    @rule()
    def time_passes(self) -> None:
        self.harness.clock.advance(15.0)

    @invariant()
    def tokens_are_those_of_the_prompt(self) -> None:
        for (group_id, choice), tokens in self.harness.tokens.items():
            group = self.groups[group_id]
            assert tuple(tokens) == fake_output(group.prompts[choice // group.n], len(tokens), choice)

    def teardown(self) -> None:
        self.harness.run(*self.inbox)
        self.harness.assert_nothing_is_left()
        for group in self.groups.values():
            self._check_end(group)
        assert self.harness.event_log is not None
        self.harness.event_log.close()
        replay(self.log_path)
        self.directory.cleanup()

    def _check_end(self, group: AddGroup) -> None:
        harness = self.harness
        ended = [c for c in range(len(group.prompts) * group.n) if (group.group_id, c) in harness.finish_reasons]
        if group.group_id not in harness.refused:
            assert len(ended) == len(group.prompts) * group.n, f"{group.group_id}: a choice never ended"
        for choice in ended:
            key, prompt = (group.group_id, choice), group.prompts[choice // group.n]
            if harness.finish_reasons[key] != "length":
                continue
            assert len(harness.tokens[key]) == group.sampling.max_tokens
            expected = list(prompt[1:]) if group.sampling.num_prompt_logprobs is not None else []
            assert [p.token_id for p in harness.prompt_logprobs[key]] == expected


CoreMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None, derandomize=True)
TestCore = CoreMachine.TestCase
