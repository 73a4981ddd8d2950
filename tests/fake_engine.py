"""`python -m tests.fake_engine`: a real engine process whose runner is a FakeRunner."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from pathlib import Path

from engine.offload_manager import NoOffload
from engine.process import serve
from engine.process_config import ProcessConfig
from engine.runner_factory import BuiltRunner, ReportProgress
from offload.errors import OffloadError
from tests.fakes import EOS_TOKEN_ID, VOCAB_SIZE, FakeRunner


class _Offload(NoOffload):
    """Says when it is closed, and may find that the warm-up moved nothing."""

    def __init__(self, closed_file: Path | None, moves_nothing: bool) -> None:
        self._closed_file = closed_file
        self._moves_nothing = moves_nothing

    def verify(self) -> None:
        if self._moves_nothing:
            raise OffloadError("a step with 3 streamed layers moved 0 bytes, the plan has 300")

    def close(self) -> None:
        if self._closed_file is not None:
            with self._closed_file.open("a") as file:
                file.write("closed\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-blocks", type=int, default=4096)
    parser.add_argument("--step-s", type=float, default=0.0, help="how long each step takes")
    parser.add_argument("--load-failure", help="loading raises this")
    parser.add_argument("--exit-status", type=int, help="leave before anything is said")
    parser.add_argument("--closed-file", type=Path, help="gets a line each time that what is offloaded is closed")
    parser.add_argument("--moves-nothing", action="store_true", help="the warm-up finds no bytes moved")
    options = parser.parse_args()
    if options.exit_status is not None:
        sys.stderr.write("a last word on standard error\n")
        return int(options.exit_status)
    config = ProcessConfig.decode(sys.stdin.buffer.read())
    logging.basicConfig(stream=sys.stderr, level=config.log_level, format="%(levelname)s %(name)s: %(message)s")
    never = threading.Event()

    def make_runner(config: ProcessConfig, report: ReportProgress) -> BuiltRunner:
        report("loading weights", 0.5)
        if options.load_failure is not None:
            raise ValueError(options.load_failure)
        scheduler = config.scheduler
        runner = FakeRunner(
            options.num_blocks,
            scheduler.block_size,
            scheduler.max_num_seqs,
            before_step=(lambda: None) if options.step_s == 0.0 else (lambda: _wait(never, options.step_s)),
        )
        max_model_len = options.num_blocks * scheduler.block_size
        return BuiltRunner(
            runner=runner,
            num_blocks=options.num_blocks,
            max_model_len=max_model_len,
            model_max_len=max_model_len,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(EOS_TOKEN_ID,),
            dtype="int32",
            device="fake",
            weights_bytes=0,
            kv_cache_bytes=0,
            threads=1,
            offload=_Offload(options.closed_file, options.moves_nothing),
        )

    return serve(config, make_runner)


def _wait(event: threading.Event, seconds: float) -> None:
    event.wait(seconds)


if __name__ == "__main__":
    sys.exit(main())
