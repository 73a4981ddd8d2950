"""A step of a decoder on native kernels, cut into ranges of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from kernels.native_library import NativeLibrary

if TYPE_CHECKING:
    from kernels.native.decoder import DecoderArguments


class NativeStep:
    """One step of a `NativeStack`, in one range of layers after the other; the bits are those of a single range."""

    __slots__ = ("_arguments", "_inputs", "_library", "out")

    def __init__(self, library: NativeLibrary, arguments: DecoderArguments, out: Tensor, inputs: tuple[object, ...]):
        self._library = library
        self._arguments = arguments
        self._inputs = inputs
        """What the arguments point to."""
        self.out = out
        """[T, hidden], the result once the last layer has run."""

    def run(self, first: int, end: int) -> None:
        """Compute layers first..end-1: from 0 on, then always from where the range before ended, to the last.

        Raises:
            ValueError: a token, length, block or slot is out of range, or the range is not the next one.
        """
        arguments = self._arguments
        arguments.first_layer, arguments.end_layer = first, end
        if not self._library.call(arguments):
            raise ValueError(
                f"layers {first} to {end} of {arguments.num_layers} in a step of {arguments.num_tokens} tokens are out "
                f"of range: of what comes next, of the vocabulary of {arguments.vocab_size}, the cache of "
                f"{arguments.num_blocks} blocks of {arguments.block_size}, or the step's own lengths"
            )
