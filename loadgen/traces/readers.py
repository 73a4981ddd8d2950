"""The reader of each format."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from loadgen.traces.azure import read_azure
from loadgen.traces.bailian import BAILIAN_BLOCK_TOKENS, BAILIAN_SOURCE, read_bailian
from loadgen.traces.burstgpt import BURSTGPT_SOURCE, read_burstgpt
from loadgen.traces.import_config import ImportConfig
from loadgen.traces.mooncake import BLOCK_TOKENS, MOONCAKE_SOURCE, read_mooncake
from loadgen.traces.otel import OTEL_SOURCE, read_otel
from loadgen.traces.prefix_ids import DEFAULT_BLOCK_TOKENS
from loadgen.traces.servegen import SERVEGEN_SOURCE, client_files, read_servegen
from loadgen.traces.sharegpt import SHAREGPT_SOURCE, read_sharegpt, sharegpt_transforms
from loadgen.traces.source_file import SourceFile
from loadgen.traces.source_format import SourceFormat
from loadgen.traces.splitwise import SPLITWISE_SOURCE, read_splitwise
from loadgen.traces.trace_error import TraceError
from loadgen.traces.trace_meta import Transform
from loadgen.traces.tracelab import TRACELAB_SOURCE, read_tracelab
from loadgen.traces.tracelab_replay import REPLAY_TIMES, read_tracelab_replay


def open_clients(path: Path, config: ImportConfig) -> SourceFile:
    """ServeGen's clients: a directory of them, or one.

    Raises:
        TraceError: see `read_servegen`.
    """
    rows, transforms = read_servegen(client_files(path), config)
    return SourceFile(rows, SERVEGEN_SOURCE, transforms, is_drawn=True)


def open_source(file: TextIO, source_format: SourceFormat, config: ImportConfig) -> SourceFile:
    """A source that is one file, from its beginning."""
    match source_format:
        case SourceFormat.AZURE:
            return SourceFile(read_azure(file), None)
        case SourceFormat.BURSTGPT:
            return SourceFile(read_burstgpt(file), BURSTGPT_SOURCE)
        case SourceFormat.SPLITWISE:
            return SourceFile(read_splitwise(file), SPLITWISE_SOURCE)
        case SourceFormat.MOONCAKE:
            return SourceFile(read_mooncake(file, config.block_tokens or BLOCK_TOKENS), MOONCAKE_SOURCE)
        case SourceFormat.BAILIAN:
            return SourceFile(read_bailian(file, config.block_tokens or BAILIAN_BLOCK_TOKENS), BAILIAN_SOURCE)
        case SourceFormat.SHAREGPT:
            return SourceFile(read_sharegpt(file, config), SHAREGPT_SOURCE, sharegpt_transforms(config), is_drawn=True)
        case SourceFormat.OTEL:
            estimate = Transform("estimate_tokens", {"where": "no usage", "chars_per_token": config.chars_per_token})
            return SourceFile(read_otel(file, config), OTEL_SOURCE, (estimate,))
    return _open_tracelab(file, source_format, config.block_tokens or DEFAULT_BLOCK_TOKENS)


def _open_tracelab(file: TextIO, source_format: SourceFormat, block_tokens: int) -> SourceFile:
    if source_format is SourceFormat.TRACELAB:
        return SourceFile(read_tracelab(file, block_tokens), TRACELAB_SOURCE)
    if source_format is SourceFormat.TRACELAB_REPLAY:
        return SourceFile(read_tracelab_replay(file, block_tokens), TRACELAB_SOURCE, (REPLAY_TIMES,))
    raise TraceError(f"a trace of {source_format.value} is not one file to import")
