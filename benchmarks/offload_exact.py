"""A8: streaming changes no bit of the logits: all strategies, every k, slots, parts of layers, k changing by the step.

    python -m benchmarks.offload_exact [--quick] [--link-gbps 2]

Every case runs the same steps as the model with all weights in place: prompts read in chunks beside decodes, batches,
one sequence given up and computed again. The logits of every token of every step must be equal, bit for bit. Nothing
is timed, so a busy machine does no harm.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from benchmarks.paired_steps import Criterion, add_arguments, heading
from benchmarks.streamed_rig import BLOCK_SIZE, BaseModel, PlacedModel, open_link
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from offload.host_link import HostLink
from offload.placement import Placement
from offload.residency import ResidencyOrder
from tests.paged_decoding import PagedDecoding

Step = Mapping[int, Sequence[int]]
NUM_BLOCKS = 64
QUICK_K = (1, 2, 4, 10, 19, 30)
NUM_CHANGES = {True: 40, False: 300}
"""Steps with another k each, by whether it is quick."""


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A placement, and the k of each step in turn."""

    strategy: str
    placement: Placement
    ks: tuple[int, ...]
    steps: tuple[Step, ...]

    def text(self) -> str:
        ks = f"{self.ks[0]}" if len(set(self.ks)) == 1 else f"{min(self.ks)}..{max(self.ks)}, changing"
        share = sum(self.placement.unit_bytes) / sum(self.placement.shape.layer_bytes)
        return f"{self.strategy:24} {ks:>15} {share:6.0%} {self.placement.num_slots:5} {len(self.steps):6}"


def mixed_steps(vocab_size: int) -> tuple[Step, ...]:
    """Chunks, decodes, both together, a recomputation, a batch of eight."""
    tokens = torch.randint(0, vocab_size, (600,), generator=torch.Generator().manual_seed(1)).tolist()
    batch = {number: tokens[40 * number : 40 * number + 9] for number in range(8)}
    return (
        {0: tokens[:48], 1: tokens[300:331]},
        {0: tokens[48:61], 1: tokens[331:332]},
        {0: tokens[61:62], 1: tokens[332:333], 2: tokens[400:464]},
        {0: tokens[62:63], 2: tokens[464:465]},
        {3: tokens[300:333], 0: tokens[63:64]},  # sequence 1 was preempted and is computed again
        {number + 4: prompt for number, prompt in batch.items()},
        {number + 4: tokens[500 + number : 501 + number] for number in range(8)},
    )


def decode_steps(vocab_size: int, count: int) -> tuple[Step, ...]:
    """Two prompts, then decodes."""
    tokens = torch.randint(0, vocab_size, (2 * count + 60,), generator=torch.Generator().manual_seed(2)).tolist()
    prompts: Step = {0: tokens[:30], 1: tokens[30:60]}
    return (prompts, *({0: [tokens[60 + 2 * n]], 1: [tokens[61 + 2 * n]]} for n in range(count - 1)))


def cases(base: BaseModel, is_quick: bool) -> Iterator[Case]:
    """Of every strategy."""
    shape, num_layers, vocab = base.shape, base.num_layers, base.model.config.vocab_size
    mixed = mixed_steps(vocab)
    yield Case("next_layer", Placement(shape, 2), (num_layers,) * len(mixed), mixed)
    for group, number in ((num_layers, 1), (8, 2), (4, 1), (3, 1)):
        streamed = [layer for layer in range(num_layers) if layer % group >= group - number]
        order = ResidencyOrder((*streamed, *(layer for layer in range(num_layers) if layer not in streamed)))
        yield Case(
            f"static_group, {number} of {group}", Placement(shape, 2, order=order), (len(streamed),) * len(mixed), mixed
        )
    for k in QUICK_K if is_quick else range(num_layers + 1):
        yield Case("static_fraction", Placement(shape, 2), (min(k, num_layers),) * len(mixed), mixed)
        for num_slots in (1, 3):
            yield Case("interval", Placement(shape, num_slots), (min(k, num_layers),) * len(mixed), mixed)
    parts = (1, max(1, shape.num_parts - 1)) if is_quick else range(1, shape.num_parts)
    for num_parts in parts:
        for k in (3, num_layers):
            yield Case("interval, parts", Placement(shape, 2, num_parts=num_parts), (k,) * len(mixed), mixed)
    chosen = random.Random(4)
    for num_slots, num_parts in ((1, shape.num_parts), (2, shape.num_parts), (3, max(1, shape.num_parts - 1))):
        steps = decode_steps(vocab, NUM_CHANGES[is_quick])
        ks = tuple(chosen.randint(0, num_layers) for _ in steps)
        yield Case("interval, k by step", Placement(shape, num_slots, num_parts=num_parts), ks, steps)


def reference(decoder: Decoder | NativeDecoder, steps: Sequence[Step]) -> list[dict[int, Tensor]]:
    decoding = PagedDecoding(decoder, NUM_BLOCKS, BLOCK_SIZE)
    return [decoding.logits(step) for step in steps]


def num_equal(base: BaseModel, link: HostLink, case: Case, expected: Sequence[dict[int, Tensor]]) -> tuple[int, int]:
    """Steps whose logits are all equal, and how many numbers of streamed layers were in force in one of them."""
    placed = PlacedModel(base, link, case.placement, num_streamed=case.ks[0])
    decoding = PagedDecoding(placed.decoder, NUM_BLOCKS, BLOCK_SIZE)
    equal, seen = 0, set()
    for index, (step, k, wanted) in enumerate(zip(case.steps, case.ks, expected, strict=True)):
        if index % 2:
            placed.settle(k)
        else:
            placed.weights.set_streamed(k, link.now_s())  # on its way while the step computes
        placed.weights.begin_step()
        try:
            logits = decoding.logits(step)
        finally:
            placed.weights.end_step()
        seen.add(placed.weights.num_streamed)
        placed.weights.check()
        equal += all(torch.equal(logits[sequence], wanted[sequence]) for sequence in wanted)
    placed.weights.drain()
    return equal, len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--link-gbps", type=float, default=2.0, help="10^9 bytes a second")
    arguments = parser.parse_args()
    base = BaseModel(arguments.model, arguments.dtype)
    print(heading("A8: logits with streamed weights, bit by bit"))
    print(f"\n{'strategy':24} {'k':>15} {'unit':>6} {'slots':>5} {'steps':>6} {'k seen':>6} {'equal':>6}")
    known: dict[int, list[dict[int, Tensor]]] = {}
    num_steps = num_same = num_cases = 0
    link = open_link(arguments.link_gbps * 1e9)
    for case in cases(base, arguments.quick):
        expected = known.get(len(case.steps))
        if expected is None:
            expected = known[len(case.steps)] = reference(base.model.decoder, case.steps)
        equal, num_seen = num_equal(base, link, case, expected)
        num_steps, num_same, num_cases = num_steps + len(case.steps), num_same + equal, num_cases + 1
        print(f"{case.text()} {num_seen:6} {equal:6}", flush=True)
    link.close()
    detail = f"{num_same} of {num_steps} steps equal in {num_cases} cases."
    print()
    print(Criterion("A8", "every logit of every step is equal", num_same == num_steps > 0, detail).line())
    base.close()


if __name__ == "__main__":
    main()
