"""The terminal once the server answers: where, which model, how much it holds, and the latency classes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from engine.messages import Ready
from scheduler.slo import SLOClass, SLOClasses


def show_start(console: Console, url: str, served_id: str, ready: Ready, classes: SLOClasses) -> None:
    """Write the report; plain lines where the console is no terminal."""
    tokens = ready.num_blocks * ready.block_size
    facts = (
        ("model", f"{served_id}, {ready.dtype} on {ready.device}"),
        ("weights", f"{_mib(ready.weights_bytes)}{_formats(ready)}"),
        (
            "KV cache",
            f"{_mib(ready.kv_cache_bytes)}: {ready.num_blocks:,} blocks of {ready.block_size}, "
            f"{tokens:,} tokens; a request may have {ready.max_model_len:,}",
        ),
        ("compute", f"{ready.threads} threads{_probed(ready)}; ready after {ready.load_s:.1f} s"),
    )
    for name, fact in facts:
        console.print(f"  {name:<10}{fact}", highlight=False, soft_wrap=True)
    console.print(_class_table(classes))
    console.print(f"Headrace answers at {url}", style="bold", highlight=False)


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


def _class_table(classes: SLOClasses) -> Table:
    table = Table("class", "service_tier", "first token within", "then a token per", "longest gap", "goal", box=None)
    for c in classes:
        name = f"{c.name} (default)" if c is classes.default else c.name
        table.add_row(name, ", ".join(c.service_tiers), _ttft(c), _ms(c.tpot_s), _gap(c), _goal(c))
    return table


def _ttft(c: SLOClass) -> str:
    per_1k = f" + {_ms(c.ttft_per_1k_tokens_s)}/1k tokens" if c.ttft_per_1k_tokens_s else ""
    return _ms(c.ttft_base_s) + per_1k


def _gap(c: SLOClass) -> str:
    return "-" if c.max_stall_s is None else _ms(c.max_stall_s)


def _goal(c: SLOClass) -> str:
    return f"{c.objective:.0%} of requests"


def _ms(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1.0 else f"{seconds * 1000:g} ms"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
