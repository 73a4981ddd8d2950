"""Choosing tokens from logits natively: what `kernels.sampling` defines, without a sort, and the logits stay.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import torch
from torch import Tensor

from kernels.native.operand import check
from kernels.native_library import Arguments, NativeLibrary
from kernels.sampling import Words


class ArgmaxArguments(Arguments):
    OPERATION = "argmax"
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("peaks", ctypes.c_void_p),
        ("logits_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
    )


class DrawArguments(Arguments):
    OPERATION = "draw"
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("peaks", ctypes.c_void_p),
        ("temperatures", ctypes.c_void_p),
        ("uniforms", ctypes.c_void_p),
        ("top_k", ctypes.c_void_p),
        ("top_p", ctypes.c_void_p),
        ("log_min_p", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("logits_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
    )


class ScoreArguments(Arguments):
    OPERATION = "score"
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("peaks", ctypes.c_void_p),
        ("log_sums", ctypes.c_void_p),
        ("top_logprobs", ctypes.c_void_p),
        ("top_ids", ctypes.c_void_p),
        ("logits_stride", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("num_top", ctypes.c_int64),
    )


class UniformsArguments(Arguments):
    OPERATION = "uniforms"
    _fields_ = (
        ("seeds", ctypes.c_void_p),
        ("streams", ctypes.c_void_p),
        ("counters", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RowScores:
    """The distribution of R rows: the log-probability of entry i is logits[i] - peak - log_sum."""

    peaks: Tensor
    """[R] float32; NaN where the row holds one."""
    log_sums: Tensor
    """[R] float32."""
    top_logprobs: Tensor
    """[R, num_top] float32, most probable first."""
    top_ids: Tensor
    """[R, num_top] int64, equal logits in the order of their ids."""


def argmax_rows(library: NativeLibrary, logits: Tensor) -> tuple[Tensor, Tensor]:
    """As `kernels.sampling.argmax_rows`: token ids [R] int64 and their logits [R] float32.

    Raises:
        ValueError: `logits` is not [R, V] float32 with adjacent entries.
    """
    num_rows, vocab_size = _check_logits(logits)
    token_ids, peaks = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    library.call(
        ArgmaxArguments(
            logits=logits.data_ptr(),
            token_ids=token_ids.data_ptr(),
            peaks=peaks.data_ptr(),
            logits_stride=logits.stride(0),
            num_rows=num_rows,
            vocab_size=vocab_size,
        )
    )
    return token_ids, peaks


def draw(
    library: NativeLibrary,
    logits: Tensor,
    peaks: Tensor,
    temperatures: Tensor,
    uniform: Tensor,
    *,
    rows: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """As `kernels.sampling.draw`, but the logits stay as they are.

    Args:
        logits: [L, V] float32; the rows that are drawn from hold neither NaN nor +inf.
        peaks, temperatures: [R] float32, as there.
        uniform: [R] float64.
        rows: [R] int64, which rows of the logits are meant; None: all in order, R = L.
        top_k, top_p, min_p: [R] int64, float64, float32, as there.

    Raises:
        ValueError: a shape or type does not fit, or `rows` names one that does not exist.
    """
    num_rows, vocab_size = _check_rows(logits, rows)
    out = torch.empty(num_rows, dtype=torch.int64)
    arguments = DrawArguments(
        logits=logits.data_ptr(),
        peaks=_pointer(peaks, "peaks", num_rows, torch.float32),
        temperatures=_pointer(temperatures, "temperatures", num_rows, torch.float32),
        uniforms=_pointer(uniform, "uniform", num_rows, torch.float64),
        token_ids=out.data_ptr(),
        logits_stride=logits.stride(0),
        num_rows=num_rows,
        vocab_size=vocab_size,
    )
    if rows is not None:
        arguments.rows = rows.data_ptr()
    if top_k is not None:
        arguments.top_k = _pointer(top_k, "top_k", num_rows, torch.int64)
        if num_rows and int(top_k.min()) < 1:
            raise ValueError(f"top_k is {int(top_k.min())}, it must be at least 1; the vocabulary's size turns it off")
    if top_p is not None:
        arguments.top_p = _pointer(top_p, "top_p", num_rows, torch.float64)
    log_min_p = None if min_p is None else min_p.log()  # lives as long as the call
    if log_min_p is not None:
        arguments.log_min_p = _pointer(log_min_p, "min_p", num_rows, torch.float32)
    library.call(arguments)
    return out


def score_rows(library: NativeLibrary, logits: Tensor, num_top: int, rows: Tensor | None = None) -> RowScores:
    """Log-probabilities of the unmodified distribution, without making all of them.

    Args:
        logits: [L, V] float32.
        num_top: tokens wanted a row; at most V are returned.
        rows: [R] int64, which rows are meant; None: all in order, R = L.

    Raises:
        ValueError: a shape or type does not fit, or `rows` names one that does not exist.
    """
    num_rows, vocab_size = _check_rows(logits, rows)
    count = min(max(num_top, 0), vocab_size)
    scores = RowScores(
        torch.empty(num_rows),
        torch.empty(num_rows),
        torch.empty(num_rows, count),
        torch.empty(num_rows, count, dtype=torch.int64),
    )
    arguments = ScoreArguments(
        logits=logits.data_ptr(),
        peaks=scores.peaks.data_ptr(),
        log_sums=scores.log_sums.data_ptr(),
        top_logprobs=scores.top_logprobs.data_ptr(),
        top_ids=scores.top_ids.data_ptr(),
        logits_stride=logits.stride(0),
        num_rows=num_rows,
        vocab_size=vocab_size,
        num_top=count,
    )
    if rows is not None:
        arguments.rows = rows.data_ptr()
    library.call(arguments)
    return scores


def uniforms(library: NativeLibrary, seeds: Words, streams: Words, counters: Words) -> Tensor:
    """As `kernels.sampling.uniforms`, bit for bit: [R] float64.

    Raises:
        ValueError: the arrays are not contiguous uint64 of one length.
    """
    if not len(seeds) == len(streams) == len(counters):
        raise ValueError(f"{len(seeds)} seeds, {len(streams)} streams and {len(counters)} counters")
    for words in (seeds, streams, counters):
        if words.dtype != np.uint64 or not words.flags.c_contiguous:
            raise ValueError(f"words are {words.dtype}, expected contiguous uint64")
    out = torch.empty(len(seeds), dtype=torch.float64)
    library.call(
        UniformsArguments(
            seeds=seeds.ctypes.data,
            streams=streams.ctypes.data,
            counters=counters.ctypes.data,
            out=out.data_ptr(),
            count=len(seeds),
        )
    )
    return out


def _check_logits(logits: Tensor) -> tuple[int, int]:
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits have shape {tuple(logits.shape)}, expected [rows, vocabulary]")
    check(logits, "logits", tuple(logits.shape), torch.float32)
    return logits.shape[0], logits.shape[1]


def _check_rows(logits: Tensor, rows: Tensor | None) -> tuple[int, int]:
    """Number of rows that are meant, and V."""
    num_rows, vocab_size = _check_logits(logits)
    if rows is None:
        return num_rows, vocab_size
    check(rows, "rows", (len(rows),), torch.int64)
    if len(rows) and not (int(rows.min()) >= 0 and int(rows.max()) < num_rows):
        raise ValueError(f"rows {int(rows.min())} to {int(rows.max())} are wanted, the logits have {num_rows}")
    return len(rows), vocab_size


def _pointer(tensor: Tensor, name: str, num_rows: int, dtype: torch.dtype) -> int:
    check(tensor, name, (num_rows,), dtype)
    return tensor.data_ptr()
