"""The terminal once the server answers: where, which model, how much it holds, and the latency classes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from engine.messages import AloneStats, KVTierStats, OffloadStats, Ready
from scheduler.config import PolicyName
from scheduler.slo import SLOClass, SLOClasses


def show_start(
    console: Console, url: str, served_id: str, ready: Ready, classes: SLOClasses, policy: PolicyName
) -> None:
    """Write the report; plain lines where the console is no terminal."""
    tokens, offload = ready.num_blocks * ready.block_size, ready.offload
    facts = (
        ("model", f"{served_id}, {ready.dtype} on {ready.device}"),
        ("weights", f"{_mib(ready.weights_bytes)}{_formats(ready)}"),
        (
            "KV cache",
            f"{'up to ' if offload else ''}{_mib(ready.kv_cache_bytes)}: {ready.num_blocks:,} blocks of "
            f"{ready.block_size}, "
            f"{tokens:,} tokens; a request may have {ready.max_model_len:,}",
        ),
        *(() if ready.kv_tiers is None else (("KV tiers", _tiers(ready.kv_tiers, ready.block_size)),)),
        *(() if offload is None else (("streaming", _streaming(offload)),)),
        ("scheduler", f"policy {policy}, admission {ready.admission}{_why_no_promises(ready, policy)}"),
        *(() if ready.alone is None else (("alone", _alone(ready.alone, classes)),)),
        ("compute", f"{_threads(ready.threads)}{_probed(ready)}; ready after {ready.load_s:.1f} s"),
    )
    for name, fact in facts:
        console.print(f"  {name:<10}{fact}", highlight=False, soft_wrap=True)
    console.print(_class_table(classes, offload))
    console.print(f"Headrace answers at {url}", style="bold", highlight=False)


def _why_no_promises(ready: Ready, policy: PolicyName) -> str:
    if ready.promise_margin is not None:
        return ""
    return ": fcfs makes no promises" if policy == "fcfs" else ": no promises are made"


def _alone(alone: AloneStats, classes: SLOClasses) -> str:
    """What a request gets that has the machine to itself, and the classes that ask for more."""
    late = [c.name for c in classes if alone.ttft_s > c.ttft_s(alone.prompt_tokens) or alone.tpot_s > c.tpot_s]
    text = (
        f"first token of a {alone.prompt_tokens:,}-token prompt after ~{alone.ttft_s * 1e3:,.0f} ms, then "
        f"~{alone.tpot_s * 1e3:.3g} ms a token"
    )
    return f"{text}: too slow for {', '.join(late)}" if late else text


def _threads(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def _streaming(offload: OffloadStats) -> str:
    """How much, and where to read on if that costs a class its targets."""
    are_in_time = all(c.is_open and not c.is_best_effort for c in offload.classes)
    hint = "" if are_in_time else "; what to do about classes that are not in time: docs/offload.md"
    return f"{offload.num_streamed_layers} of {offload.num_layers} layers from host memory{hint}"


def _tiers(tiers: KVTierStats, block_size: int) -> str:
    """Where else KV blocks are kept, and what the disk brought along."""
    host = f"host {_blocks(tiers.num_host_slots, tiers.block_bytes, block_size)}"
    if not tiers.num_disk_blocks:
        return host
    disk = f"disk {_blocks(tiers.num_disk_blocks, tiers.block_bytes, block_size)}"
    return f"{host}; {disk}, {tiers.num_disk_used:,} blocks found there"


def _blocks(num_blocks: int, block_bytes: int, block_size: int) -> str:
    return f"{_mib(num_blocks * block_bytes)}: {num_blocks:,} blocks, {num_blocks * block_size:,} tokens"


def _probed(ready: Ready) -> str:
    """What the choice of threads rests on."""
    taken = ", ".join(f"{step_s * 1e3:.1f} ms with {n}" for n, step_s in sorted(ready.step_s_by_threads.items()))
    return f" (a step of the probe: {taken})" if taken else ""


def _formats(ready: Ready) -> str:
    """What the weights are, most first; where most are float32, as some checkpoints are stored, how to halve them."""
    sizes = sorted(ready.weights_bytes_by_format.items(), key=lambda item: -item[1])
    if not sizes:
        return ""
    hint = "; --dtype bfloat16 takes half as much" if sizes[0][0] == "float32" else ""
    return f": {', '.join(f'{name} {_mib(num_bytes)}' for name, num_bytes in sizes)}{hint}"


def _class_table(classes: SLOClasses, offload: OffloadStats | None) -> Table:
    """Every class; the name says which one is not open."""
    states = {
        c.name: "best effort" if c.is_best_effort else "closed"
        for c in (() if offload is None else offload.classes)
        if c.is_best_effort or not c.is_open
    }
    table = Table("class", "service_tier", "first token within", "then a token per", "longest gap", "goal", box=None)
    for c in classes:
        remarks = (*(("default",) if c is classes.default else ()), *((states[c.name],) if c.name in states else ()))
        name = f"{c.name} ({', '.join(remarks)})" if remarks else c.name
        table.add_row(name, ", ".join(c.service_tiers), _ttft(c), _ms(c.tpot_s), _gap(c), _goal(c))
    return table


def _ttft(c: SLOClass) -> str:
    per_1k = f" + {_ms(c.ttft_per_1k_tokens_s)}/1k tokens" if c.ttft_per_1k_tokens_s else ""
    return _ms(c.ttft_base_s) + per_1k


def _gap(c: SLOClass) -> str:
    return "-" if c.max_stall_s is None else _ms(c.max_stall_s)


def _goal(c: SLOClass) -> str:
    return f"{c.objective:.0%} met"


def _ms(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1.0 else f"{seconds * 1000:g} ms"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
