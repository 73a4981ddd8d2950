"""Before KV tiers are relied on: a block goes to the host and comes back, and it is the same."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import EngineStartError
from offload.kv_offload import KVOffload
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MovePurpose

_HASH = bytes(16)


def check_round_trip(mover: KVOffload, device_blocks: Tensor) -> None:
    """Store the first device block and load it into the second one, if there is one. Both are zeros afterwards.

    Args:
        device_blocks: [num_blocks, block_bytes] uint8; nobody uses the first two yet. Of the others some may be the
            weights' for now.

    Raises:
        EngineStartError: it did not arrive, or not as it was.
    """
    pattern = torch.arange(device_blocks.shape[1], device=device_blocks.device).remainder(251).to(torch.uint8)
    target = min(1, len(device_blocks) - 1)
    first, second = device_blocks[0], device_blocks[target]
    first.copy_(pattern)
    store = BlockMove(0, MoveKind.STORE, MovePurpose.ADMITTED, (_HASH,), (0,), (0,))
    load = BlockMove(1, MoveKind.LOAD, MovePurpose.ADMITTED, (_HASH,), (target,), (0,))
    try:
        for move in (store, load):
            mover.begin([move])
            mover.wait_ended([move.transfer_id])
            (result,) = mover.collect()
            if result.outcomes != (MoveOutcome.DONE,):
                raise EngineStartError(
                    f"the trial {move.kind} of a KV block between device and host {result.outcomes[0]}: start without "
                    "--host-memory and --disk-path, and see the log for the cause"
                )
            if move is store and target:
                first.zero_()
        if not torch.equal(second, pattern):
            raise EngineStartError(
                "a KV block that went to the host and back is not what it was: start without --host-memory and "
                "--disk-path, and check this machine's memory"
            )
    finally:
        first.zero_()
        second.zero_()
