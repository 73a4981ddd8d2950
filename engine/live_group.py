"""The choices of one HTTP request while the engine works on them, and their specifications for the scheduler."""

from __future__ import annotations

import dataclasses

import msgspec

from engine.messages import AddGroup, GroupAdmitted
from engine.sequence import Sequence
from scheduler.output import Admission
from scheduler.request import BlockHash, RequestSpec
from scheduler.slo import SLO


@dataclasses.dataclass(slots=True, eq=False)
class LiveChoice:
    """One choice between its arrival and its finish."""

    group: LiveGroup
    sequence: Sequence
    is_in_runner: bool = False
    num_prompt_logprobs: int = 0
    """Prompt positions whose log-probabilities were sent."""

    @property
    def request_id(self) -> str:
        return self.sequence.request_id

    @property
    def prompt_index(self) -> int:
        return self.sequence.choice // self.group.n

    def take_prompt_rows(self, first: int, end: int) -> int:
        """Note that prompt rows `first` to `end` (exclusive) are sent; how many leading ones were sent before.

        A preempted prompt is computed again; its log-probabilities are sent once.
        """
        num_known = min(max(self.num_prompt_logprobs - first, 0), end - first)
        self.num_prompt_logprobs = max(self.num_prompt_logprobs, end)
        return num_known


@dataclasses.dataclass(slots=True, eq=False)
class LiveGroup:
    """Choices that are admitted, refused and cancelled together; choice i has prompt i // n."""

    group_id: str
    n: int
    choices: dict[int, LiveChoice] = dataclasses.field(default_factory=dict)
    """The unfinished ones."""
    granted: str = ""
    admissions: dict[int, Admission] = dataclasses.field(default_factory=dict)
    """By prompt: the first start of one of its choices."""

    def admit(self, choice: LiveChoice, admission: Admission) -> GroupAdmitted | None:
        """Note the start of a choice; the message to send: for the first one of each prompt."""
        if choice.prompt_index in self.admissions:
            return None
        self.admissions[choice.prompt_index] = admission
        started = self.admissions.values()
        return GroupAdmitted(
            group_id=self.group_id,
            granted=self.granted,
            num_cached_tokens=sum(one.num_cached_tokens for one in started),
            num_host_cached_tokens=sum(one.num_host_cached_tokens for one in started),
            num_disk_cached_tokens=sum(one.num_disk_cached_tokens for one in started),
            ttft_target_s=admission.ttft_target_s,
            tpot_target_s=admission.tpot_target_s,
            is_best_effort=admission.is_best_effort,
        )

    def siblings(self, choice: LiveChoice) -> list[LiveChoice]:
        """The unfinished choices of the same prompt, `choice` apart."""
        return [c for c in self.choices.values() if c.prompt_index == choice.prompt_index and c is not choice]


def build_group(
    message: AddGroup, eos_token_ids: frozenset[int], block_size: int
) -> tuple[LiveGroup, tuple[RequestSpec, ...]]:
    """The sequences of a group and what the scheduler is told of them.

    The first choice of each prompt leads: its blocks are hashed once and shared by the others.
    """
    sampling = message.sampling
    stop_token_ids = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_token_ids)
    group = LiveGroup(message.group_id, message.n)
    slo = SLO(**msgspec.structs.asdict(message.slo))
    specs: list[RequestSpec] = []
    for index, prompt in enumerate(message.prompts):
        leader_choice = index * message.n
        leader = Sequence(
            f"{message.group_id}/{leader_choice}",
            leader_choice,
            prompt,
            sampling,
            stop_token_ids,
            block_size,
            message.cache_salt,
        )
        block_hashes = leader.hash_full_blocks(len(prompt))
        sequences = [leader] + [
            leader.fork(f"{message.group_id}/{choice}", choice)
            for choice in range(leader_choice + 1, leader_choice + message.n)
        ]
        for sequence in sequences:
            group.choices[sequence.choice] = LiveChoice(group, sequence)
            specs.append(_spec(message, sequence, slo, block_hashes, None if sequence is leader else leader.request_id))
    return group, tuple(specs)


def _spec(
    message: AddGroup, sequence: Sequence, slo: SLO, block_hashes: tuple[BlockHash, ...], leader_id: str | None
) -> RequestSpec:
    return RequestSpec(
        request_id=sequence.request_id,
        group_id=message.group_id,
        num_prompt_tokens=sequence.num_prompt_tokens,
        max_tokens=message.sampling.max_tokens,
        block_hashes=block_hashes,
        slo=slo,
        arrival_s=message.arrival_s,
        leader_id=leader_id,
        reads_prefix_cache=message.sampling.num_prompt_logprobs is None,
        tenant=message.tenant,
        retention=message.retention,
    )
