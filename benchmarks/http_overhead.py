"""What HTTP costs: processor time per streamed token, and how long hostile bodies hold up the event loop.

    .venv/bin/python -m benchmarks.http_overhead [--streams 32] [--tokens 200]

The server is real (uvicorn, routes, tokenizer, metrics), the engine is a script in the same process; clients are other
processes. Run it on an idle machine: the lag of the loop without any request is printed first.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import sys

import httpx

from server.loop_lag import watch_loop_lag
from tests.http_harness import Harness, harness, listening

LAG_INTERVAL_S = 0.002
MEGABYTES_4 = 4 * 1024**2 - 1024
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def bodies() -> dict[str, tuple[str, str]]:
    """Name → (path, body), each of nearly the largest size that is accepted, and each built to be slow somewhere."""
    turn = '{"role":"user","content":"a"}'
    parts = '{"role":"user","content":[{"type":"text","text":"a"}]}'

    def listed(item: str, count: int) -> str:
        return "[" + ",".join([item] * count) + "]"

    return {
        "none": ("/livez", ""),
        "one long text": (TEXT, json.dumps({"prompt": "hello world " * (MEGABYTES_4 // 12)})),
        "escaped text": (TEXT, '{"prompt":"' + "\\u4e2d" * (MEGABYTES_4 // 6) + '"}'),
        "token ids": (TEXT, '{"prompt":' + listed("12345", MEGABYTES_4 // 6) + "}"),
        "empty lists": (TEXT, '{"prompt":' + listed("[]", MEGABYTES_4 // 3) + "}"),
        "short texts": (TEXT, '{"prompt":' + listed('"a"', 199_000) + "}"),
        "messages": (CHAT, '{"messages":' + listed(turn, MEGABYTES_4 // 31) + "}"),
        "8000 messages": (CHAT, '{"messages":' + listed(turn, 8000) + "}"),
        "6000 messages of parts": (CHAT, '{"messages":' + listed(parts, 6000) + "}"),
        "many keys": (TEXT, '{"prompt":{' + ",".join(f'"{i}":1' for i in range(350_000)) + "}}"),
    }


def client(url: str, name: str) -> None:
    """The other process: one request."""
    path, body = bodies()[name]
    response = httpx.request(
        "POST" if body else "GET",
        url + path,
        content=body,
        headers={"content-type": "application/json"},
        timeout=60.0,
    )
    sys.stdout.write(f"{response.status_code}")


def reader(url: str, num_streams: int, num_tokens: int) -> None:
    """The other process: streams side by side, read to their ends."""

    async def one(session: httpx.AsyncClient) -> None:
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "max_tokens": num_tokens,
            "ignore_eos": True,
        }
        async with session.stream("POST", url + CHAT, json=body) as response:
            async for _ in response.aiter_raw():
                pass

    async def read_all() -> None:
        limits = httpx.Limits(max_connections=num_streams)
        async with httpx.AsyncClient(timeout=120.0, limits=limits) as session:
            await asyncio.gather(*(one(session) for _ in range(num_streams)))

    asyncio.run(read_all())


async def measure(num_streams: int, num_tokens: int) -> None:
    async with harness(max_model_len=32_768) as made, listening(made) as (url, _):
        gc.collect()
        gc.freeze()
        await measure_tokens(made, url, num_streams, num_tokens)
        print(f"{'body':<24}{'status':>8}{'max lag':>10}")
        for name in bodies():
            lags: list[float] = []
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.http_overhead", "--client", url, name),
                stdout=asyncio.subprocess.PIPE,
            )
            watch = asyncio.create_task(watch_loop_lag(lags.append, LAG_INTERVAL_S))
            status, _ = await process.communicate()
            watch.cancel()
            print(f"{name:<24}{status.decode():>8}{max(lags) * 1000:>7.1f} ms")


async def measure_tokens(made: Harness, url: str, num_streams: int, num_tokens: int) -> None:
    made.engine.script.output = lambda *_: [20 + index % 300 for index in range(num_tokens)]
    before = resource.getrusage(resource.RUSAGE_SELF)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.http_overhead", "--reader", url, f"{num_streams}", f"{num_tokens}")
    )
    await process.wait()
    after = resource.getrusage(resource.RUSAGE_SELF)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    per_token_us = used_s / (num_streams * num_tokens) * 1e6
    print(f"{num_streams} streams of {num_tokens} tokens: {per_token_us:.0f} us of processor time per token")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--client", nargs=2, metavar=("URL", "BODY"))
    parser.add_argument("--reader", nargs=3, metavar=("URL", "STREAMS", "TOKENS"))
    options = parser.parse_args()
    if options.client:
        client(*options.client)
    elif options.reader:
        reader(options.reader[0], int(options.reader[1]), int(options.reader[2]))
    else:
        asyncio.run(measure(options.streams, options.tokens))


if __name__ == "__main__":
    main()
