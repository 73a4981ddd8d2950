"""Paged attention: the work of a step, planned once, and the call that does one layer's.

Axes: S sequences of a step, T tokens of a step (all sequences back to back), H query heads, KH key/value heads,
D head dimension, B blocks of the pool, P tokens in a block.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels.native.operand import check, dtype_code
from kernels.native_library import Arguments, NativeLibrary

Ints = npt.NDArray[np.int32]

_TASK_FIELDS = 8
"""int32 numbers of an hr_attention_task."""


class AttentionPlan(ctypes.Structure):
    """`hr_attention_plan`: what `plan_attention` made."""

    _fields_ = (
        ("num_tasks", ctypes.c_int64),
        ("num_merges", ctypes.c_int64),
        ("num_partials", ctypes.c_int64),
        ("max_task_rows", ctypes.c_int64),
    )


class PlanAttentionArguments(Arguments):
    OPERATION = "plan_attention"
    _fields_ = (
        ("query_starts", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("tasks", ctypes.c_void_p),
        ("merges", ctypes.c_void_p),
        ("plan", ctypes.c_void_p),
        ("num_sequences", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("sliding_window", ctypes.c_int64),
    )


class AttendArguments(Arguments):
    OPERATION = "attend"
    _fields_ = (
        ("query", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("query_starts", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("tasks", ctypes.c_void_p),
        ("merges", ctypes.c_void_p),
        ("plan", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("value_offset", ctypes.c_int64),
        ("slot_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("table_stride", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("sliding_window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
        ("dtype", ctypes.c_int32),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionWork:
    """The sequences of a step and how their attention is cut into tasks; read by every layer of equal window.

    Owns the memory that the calls read.
    """

    block_tables: Ints
    """[S, max blocks]."""
    query_starts: Ints
    """[S + 1] first token of each sequence; last: T."""
    context_lens: Ints
    """[S]."""
    tasks: Ints
    """[at least plan.num_tasks, 8] hr_attention_task."""
    merges: Ints
    plan: AttentionPlan
    num_heads: int
    num_kv_heads: int
    block_size: int
    sliding_window: int
    """0: none."""
    num_blocks: int
    """The cache must have at least that many: one more than the largest id in the tables."""

    def arguments(self) -> AttendArguments:
        """All of a layer's arguments but its tensors, scale and cap."""
        return AttendArguments(
            block_tables=self.block_tables.ctypes.data,
            query_starts=self.query_starts.ctypes.data,
            context_lens=self.context_lens.ctypes.data,
            tasks=self.tasks.ctypes.data,
            merges=self.merges.ctypes.data,
            plan=ctypes.addressof(self.plan),
            table_stride=self.block_tables.shape[1],
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            block_size=self.block_size,
            sliding_window=self.sliding_window,
        )


def plan_attention(
    library: NativeLibrary,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: npt.NDArray[np.int64] | Ints,
    num_heads: int,
    num_kv_heads: int,
    block_size: int,
    sliding_window: int | None = None,
) -> AttentionWork:
    """Cut the attention of a step into tasks for the library's threads.

    Args:
        query_lens, context_lens: [S] as in `AttentionMetadata`.
        block_tables: [S, max blocks].
        sliding_window: a query sees at most that many last positions, itself included; None: all.

    Raises:
        ValueError: the lengths do not fit each other or the tables.
    """
    queries, contexts = np.array(query_lens, dtype=np.int32), np.array(context_lens, dtype=np.int32)
    _check_step(queries, contexts, block_tables, block_size)
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} key/value heads evenly")
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window is {sliding_window}, it must be at least 1, or None for no window")
    starts = np.zeros(len(queries) + 1, dtype=np.int32)
    queries.cumsum(out=starts[1:])
    plan = AttentionPlan()
    arguments = PlanAttentionArguments(
        query_starts=starts.ctypes.data,
        context_lens=contexts.ctypes.data,
        plan=ctypes.addressof(plan),
        num_sequences=len(queries),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        sliding_window=sliding_window or 0,
    )
    capacity = 4 * (len(queries) + 16)
    while True:
        tasks, merges = (np.empty((capacity, _TASK_FIELDS), dtype=np.int32) for _ in range(2))
        arguments.tasks, arguments.merges, arguments.capacity = tasks.ctypes.data, merges.ctypes.data, capacity
        library.call(arguments)
        needed = max(plan.num_tasks, plan.num_merges)
        if needed <= capacity:
            break
        capacity = needed
    tables = np.ascontiguousarray(block_tables, dtype=np.int32)
    num_blocks = int(tables.max(initial=-1)) + 1
    return AttentionWork(
        tables,
        starts,
        contexts,
        tasks,
        merges,
        plan,
        num_heads,
        num_kv_heads,
        block_size,
        sliding_window or 0,
        num_blocks,
    )


def _check_step(queries: Ints, contexts: Ints, block_tables: npt.NDArray[np.int64] | Ints, block_size: int) -> None:
    if not len(queries) == len(contexts) == len(block_tables):
        raise ValueError(
            f"{len(queries)} query lengths, {len(contexts)} context lengths and {len(block_tables)} block tables"
        )
    if len(queries) == 0:
        return
    if queries.min() < 1 or (contexts < queries).any():
        raise ValueError("each sequence needs at least 1 query and a context that holds its queries")
    if block_tables.size and block_tables.min() < 0:
        raise ValueError(f"a block table holds {block_tables.min()}, block ids start at 0")
    if contexts.max() > block_tables.shape[1] * block_size:
        raise ValueError(
            f"a context of {contexts.max()} tokens needs more than the tables' {block_tables.shape[1]} blocks "
            f"of {block_size}"
        )


def attend(
    library: NativeLibrary,
    work: AttentionWork,
    query: Tensor,
    layer_cache: Tensor,
    out: Tensor,
    scale: float,
    soft_cap: float | None = None,
) -> None:
    """As `kernels.reference.paged_attention`, into `out`.

    Args:
        work: of `plan_attention`; its block tables name blocks of the cache.
        query, out: [T, H, D] float32, bfloat16 or float16, heads adjacent; tokens may be strided. `out` is overwritten.
        layer_cache: [B, 2, P, KH, D] of the same type, a strided view of one layer.
        scale: factor on the dot products.
        soft_cap: scores become soft_cap * tanh(score / soft_cap).

    Raises:
        ValueError: a shape or type does not fit.
    """
    _, num_heads, head_dim = query.shape
    shape = (int(work.query_starts[-1]), work.num_heads, head_dim)
    check(query, "query", shape)
    check(out, "out", shape, query.dtype)
    check(layer_cache, "layer_cache", (len(layer_cache), 2, work.block_size, work.num_kv_heads, head_dim), query.dtype)
    for name, tensor in (("query", query), ("out", out)):
        if num_heads > 1 and tensor.stride(1) != head_dim:
            raise ValueError(f"{name}: the heads of a token are {tensor.stride(1)} apart, expected {head_dim}")
    if len(layer_cache) < work.num_blocks:
        raise ValueError(f"the block tables name block {work.num_blocks - 1}, the cache has {len(layer_cache)} blocks")
    if not scale > 0:
        raise ValueError(f"scale is {scale}, it must be above 0")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap is {soft_cap}, it must be above 0, or None for no cap")
    arguments = work.arguments()
    arguments.query, arguments.query_stride = query.data_ptr(), query.stride(0)
    arguments.out, arguments.out_stride = out.data_ptr(), out.stride(0)
    arguments.cache = layer_cache.data_ptr()
    arguments.block_stride, arguments.value_offset, arguments.slot_stride, arguments.head_stride, _ = (
        layer_cache.stride()
    )
    arguments.head_dim = head_dim
    arguments.scale, arguments.soft_cap = scale, soft_cap or 0.0
    arguments.dtype = dtype_code(query, "query")
    library.call(arguments)
