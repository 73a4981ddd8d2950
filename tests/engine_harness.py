"""An EngineCore with the real scheduler and a fake runner, and everything that it said."""

from __future__ import annotations

from pathlib import Path

from engine.core import EngineCore
from engine.event_log import EventLog, Header
from engine.messages import AbortChoices, AddGroup, GroupAdmitted, GroupRefused, SLORequest, StepOutputs, TokenLogprob
from engine.offload_manager import OffloadManager
from engine.sampling_params import SamplingParams
from scheduler.config import SchedulerConfig
from scheduler.kv_transfer import NO_TIERS, TierConfig
from scheduler.latency_coefficients import LatencyCoefficients
from scheduler.latency_model import LatencyModel
from scheduler.scheduler import Scheduler
from scheduler.slo import DEFAULT_CLASSES, SLOClasses
from tests.fakes import EOS_TOKEN_ID, FakeRunner, HandClock

MAX_TURNS = 5000


def add_group(
    group_id: str,
    *prompts: tuple[int, ...],
    n: int = 1,
    max_tokens: int = 4,
    slo_class: str = "standard",
    arrival_s: float = 1000.0,
    cache_salt: str = "",
    **sampling: object,
) -> AddGroup:
    """A group with sensible values for what a test does not care about."""
    return AddGroup(
        group_id=group_id,
        prompts=prompts,
        n=n,
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
        slo=SLORequest(requested=slo_class, granted=slo_class),
        arrival_s=arrival_s,
        cache_salt=cache_salt,
    )


class EngineHarness:
    """Checks every invariant after every turn."""

    def __init__(
        self,
        num_blocks: int = 64,
        max_model_len: int | None = None,
        event_log_path: Path | None = None,
        offload: OffloadManager | None = None,
        latency: LatencyCoefficients | None = None,
        runner: FakeRunner | None = None,
        tiers: TierConfig = NO_TIERS,
        **scheduler_options: object,
    ) -> None:
        """`runner`: with as many blocks; None: one that looks at every context."""
        options: dict[str, object] = {"block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8}
        self.config = SchedulerConfig(**(options | scheduler_options))  # type: ignore[arg-type]
        self.clock = HandClock(tick_s=0.001)
        self.runner = runner or FakeRunner(num_blocks, self.config.block_size, self.config.max_num_seqs)
        max_model_len = max_model_len or num_blocks * self.config.block_size
        model = None if latency is None else LatencyModel(latency)
        self.scheduler = Scheduler(self.config, SLOClasses(), num_blocks, max_model_len, model, tiers)
        self.event_log = None
        if event_log_path is not None:
            header = Header(
                scheduler=self.config,
                classes=DEFAULT_CLASSES,
                default_class="standard",
                num_blocks=num_blocks,
                max_model_len=max_model_len,
                latency=latency,
                tiers=tiers,
            )
            self.event_log = EventLog(event_log_path, header)
        self.core = EngineCore(
            self.scheduler,
            self.runner,
            self.clock,
            block_size=self.config.block_size,
            eos_token_ids=frozenset({EOS_TOKEN_ID}),
            event_log=self.event_log,
            offload=offload,
        )
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.prompt_logprobs: dict[tuple[str, int], list[TokenLogprob]] = {}
        self.finish_reasons: dict[tuple[str, int], str] = {}
        self.stop_token_ids: dict[tuple[str, int], int | None] = {}
        self.admitted: dict[str, list[GroupAdmitted]] = {}
        self.refused: dict[str, GroupRefused] = {}

    def turn(self, *messages: AddGroup | AbortChoices) -> StepOutputs:
        outputs = self.core.turn(messages)
        self.core.check()
        for admitted in outputs.admitted:
            self.admitted.setdefault(admitted.group_id, []).append(admitted)
        for refused in outputs.refused:
            assert refused.group_id not in self.refused, "refused twice"
            self.refused[refused.group_id] = refused
        for delta in outputs.deltas:
            key = (delta.group_id, delta.choice)
            assert key not in self.finish_reasons, f"{key}: a delta after the last one"
            assert delta.group_id in self.admitted or delta.finish_reason == "abort", f"{key}: a delta before admission"
            self.tokens.setdefault(key, []).extend(delta.token_ids)
            self.prompt_logprobs.setdefault(key, []).extend(delta.prompt_logprobs)
            if delta.finish_reason is not None:
                self.finish_reasons[key] = delta.finish_reason
                self.stop_token_ids[key] = delta.stop_token_id
        return outputs

    def run(self, *messages: AddGroup | AbortChoices) -> StepOutputs:
        """Turns until nothing is live; the last one's message."""
        outputs = self.turn(*messages)
        for _ in range(MAX_TURNS):
            if not self.core.num_live_choices:
                return outputs
            outputs = self.turn()
        raise AssertionError(f"{self.core.num_live_choices} choices are live after {MAX_TURNS} turns")

    def assert_nothing_is_left(self) -> None:
        assert self.core.num_live_choices == 0
        assert not self.core._groups and not self.scheduler._requests
        assert self.runner.num_sequences == 0
        assert self.scheduler.stats().num_blocks_used == 0
