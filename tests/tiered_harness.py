"""An EngineCore with the real scheduler, real moves of real bytes on a link of virtual time, and a fake runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from engine.kv_tier_manager import KVTierManager
from engine.messages import AbortChoices, AddGroup, StepOutputs
from engine.model_runner_output import ModelRunnerOutput, RequestOutput
from engine.offload_manager import NoOffload
from engine.result_bell import ResultBell
from engine.tiered_offload import TieredOffload
from offload.host_tier import HostTier
from offload.kv_disk import DiskTier
from offload.kv_fingerprint import KVFingerprint
from offload.kv_host_pool import KVHostPool
from offload.kv_offload import KVOffload
from offload.link import TransferHandle
from offload.load_parts import first_layers
from offload.transfer import LinkTransfer
from scheduler.kv_transfer import TierConfig
from scheduler.output import ScheduledRequest, SchedulerOutput
from tests.engine_harness import MAX_TURNS, EngineHarness
from tests.fake_link import FakeLink
from tests.fakes import FakeRunner
from tests.kv_tiers import FaultyFiles, InlineLanes

BLOCK_SIZE = 4
BLOCK_BYTES = BLOCK_SIZE * 4
NUM_LAYERS = 4
"""Those of a block of token ids: one position each, so that its parts are whole positions."""
NUM_PARTS = 2
MAX_NUM_SEQS = 4


class GatedRunner(FakeRunner):
    """Passes the gate before it looks; a wrong context is an error of its request alone.

    Whoever is void had one and goes on; for anybody else the error is the end, which tests do not accept.
    """

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, BLOCK_SIZE, MAX_NUM_SEQS)
        self.gate: KVTierManager | None = None
        self.num_gated_steps = 0
        self.num_wrong = 0

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        assert self.gate is not None
        self.num_gated_steps += bool(self.gate.gated_layers)
        for layer in self.gate.gated_layers:
            self.gate.pass_layer(layer)
        return super().execute(output)

    def _answer(self, scheduled: ScheduledRequest) -> RequestOutput:
        try:
            return super()._answer(scheduled)
        except AssertionError as error:
            if "wrong keys and values" not in str(error):
                raise
            self.num_wrong += 1
            return RequestOutput(scheduled.request_id, None, error=str(error))


class FaultyLink(FakeLink):
    """Each `period`-th copy fails; 0: none does."""

    def __init__(self, bytes_per_s: float) -> None:
        super().__init__(bytes_per_s)
        self.period = 0
        self._num_submitted = 0

    def submit(self, transfer: LinkTransfer, on_done: Callable[[TransferHandle], None] | None = None) -> TransferHandle:
        handle = super().submit(transfer, on_done)
        self._num_submitted += 1
        if self.period and self._num_submitted % self.period == 0 and not handle.is_done:
            self.fail(handle, OSError("the bus was reset"))
        return handle


class TieredHarness(EngineHarness):
    """The link advances with the turns."""

    def __init__(
        self,
        *,
        num_blocks: int,
        num_host_slots: int,
        directory: Path,
        num_disk_blocks: int,
        bytes_per_s: float,
        event_log_path: Path | None = None,
    ) -> None:
        """`num_disk_blocks`: 0: there is no disk."""
        self.link = FaultyLink(bytes_per_s)
        self.turn_s = 0.01
        """That each turn takes on the link's clock, the waiting apart."""
        runner = GatedRunner(num_blocks)
        self.files = FaultyFiles()
        self.disk = None
        if num_disk_blocks:
            identity = KVFingerprint("fake", "stored", "int32", "none", BLOCK_SIZE, NUM_LAYERS, 1, 1)
            self.disk = DiskTier(directory, identity, BLOCK_BYTES, num_disk_blocks * 8192, self.files)
        host_tier = HostTier()
        self.pool = KVHostPool(host_tier, num_host_slots, BLOCK_BYTES)
        bell = ResultBell()
        blocks = torch.from_numpy(runner.blocks).view(torch.uint8)
        mover = KVOffload(
            self.link, blocks, self.pool, self.disk, NUM_PARTS, num_layers=NUM_LAYERS, check_share=1.0,
            record_event=lambda: None, on_done=bell.ring, lanes=InlineLanes(),
        )  # fmt: skip
        self.manager = KVTierManager(mover, first_layers(NUM_LAYERS, NUM_PARTS), self.link.now_s)
        self.gated = runner
        runner.gate = self.manager
        self.tiered = TieredOffload(NoOffload(), self.manager, self.link, host_tier, bell)
        super().__init__(
            num_blocks=num_blocks,
            event_log_path=event_log_path,
            offload=self.tiered,
            runner=runner,
            tiers=TierConfig(
                num_host_slots, 0 if self.disk is None else self.disk.num_blocks, BLOCK_BYTES, NUM_PARTS,
            ),
            block_size=BLOCK_SIZE,
            max_num_batched_tokens=12,
            max_num_seqs=MAX_NUM_SEQS,
        )  # fmt: skip

    def settle(self) -> None:
        """Turns until no copy is under way and none is wanted."""
        for _ in range(MAX_TURNS):
            if self.manager.num_open == 0 and self.core.wait_s() != 0.0:
                return
            self.turn()
        raise AssertionError(f"{self.manager.num_open} copies are under way after {MAX_TURNS} turns")

    def turn(self, *messages: AddGroup | AbortChoices) -> StepOutputs:
        outputs = super().turn(*messages)
        self.tiered.check()
        self.link.advance(self.turn_s)
        return outputs
