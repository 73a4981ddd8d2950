"""How much later a client has its first token than the server says: connection, request, answer and the client itself.

The server's time begins when the body was read and ends when the token is handed to the socket; tokenizing is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from loadgen.trace import RequestTrace


def read_server_ttfts(path: Path, num_skipped: int) -> list[tuple[int, float | None]]:
    """Prompt tokens and TTFT of each line of a request log in the order of arrival; None: no token.

    Args:
        num_skipped: requests that came first and are not of interest.

    Raises:
        OSError: it cannot be read.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines.sort(key=lambda line: float(line["arrival_s"]))
    return [(line["num_prompt_tokens"], _first_s(line["choices"], line["arrival_s"])) for line in lines[num_skipped:]]


def _first_s(choices: Sequence[dict[str, list[list[float]]]], arrival_s: float) -> float | None:
    chunks = choices[0]["chunks"]
    return chunks[0][0] - arrival_s if chunks else None


def ways_s(runs: Iterable[Sequence[RequestTrace]], served: Sequence[tuple[int, float | None]]) -> list[float]:
    """TTFT from the moment of sending, less the server's, of each request that both know; ascending.

    Requests are told apart by their order: of two that came at once, and differ in length, neither counts.

    Args:
        runs: one after the other, as they were sent.

    Raises:
        ValueError: the server saw another number of requests.
    """
    sent = [trace for run in runs for trace in sorted(run, key=lambda trace: trace.sent_s)]
    if len(sent) != len(served):
        raise ValueError(f"{len(sent)} requests were sent, the server's log has {len(served)}")
    return sorted(
        trace.chunks[0].time_s - trace.sent_s - ttft_s
        for trace, (num_prompt_tokens, ttft_s) in zip(sent, served, strict=True)
        if trace.chunks and ttft_s is not None and trace.num_prompt_tokens == num_prompt_tokens
    )
