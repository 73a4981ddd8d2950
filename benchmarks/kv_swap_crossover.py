"""Swap against recomputation, measured and as the scheduler predicts it: `python -m benchmarks.kv_swap_crossover`.

A victim of each length is preempted on links of several speeds, in turn by swap (its blocks are stored, and loaded when
it returns) and by recomputation; see `benchmarks.kv_preemption_rig`. Measured is the time that its blocks take to leave
and the time from its return to its next token, not how long others keep its place. Beside it stands what the scheduler
priced both at in the moment of the preemption.

Speeds are multiples of the one at which storing and loading a token takes as long as computing it is predicted to take.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from benchmarks.kv_preemption_rig import BLOCK_SIZE, PreemptionRig, Restored
from benchmarks.kv_serving import Quiet, heading, table
from engine.processors import available_processors
from offload.measurements import median

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
MULTIPLES = (0.5, 0.75, 1.0, 1.5, 4.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One length on one link. Seconds; medians."""

    multiple: float
    num_tokens: int
    swaps: tuple[Restored, ...]
    recomputes: tuple[Restored, ...]

    @property
    def swap_s(self) -> float:
        return median([one.total_s for one in self.swaps])

    @property
    def recompute_s(self) -> float:
        return median([one.total_s for one in self.recomputes])

    @property
    def predicted_swap_s(self) -> float:
        return median([one.predicted.swap_s for one in (*self.swaps, *self.recomputes)])

    @property
    def predicted_recompute_s(self) -> float:
        return median([one.predicted.recompute_s for one in (*self.swaps, *self.recomputes)])

    @property
    def choices(self) -> list[bool]:
        """Of "auto" at each preemption: whether it would have swapped."""
        return [one.predicted.prefers_swap for one in (*self.swaps, *self.recomputes)]

    @property
    def is_swap_faster(self) -> bool:
        return self.swap_s <= self.recompute_s

    def row(self) -> list[str]:
        right = sum(choice == self.is_swap_faster for choice in self.choices)
        stored_s = median([one.store_s for one in self.swaps])
        return [
            f"{self.num_tokens}", f"{self.swap_s * 1e3:.0f} ({stored_s * 1e3:.0f})", f"{self.recompute_s * 1e3:.0f}",
            f"{self.predicted_swap_s * 1e3:.0f}", f"{self.predicted_recompute_s * 1e3:.0f}",
            "swap" if self.is_swap_faster else "recompute", f"{right} of {len(self.choices)}",
        ]  # fmt: skip


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=available_processors().compute_threads)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="tokens of a victim")
    parser.add_argument("--multiples", type=float, nargs="+", default=list(MULTIPLES), help="speeds of the link")
    parser.add_argument("--rounds", type=int, default=3, help="preemptions of each kind, of the longest ones 2")
    parser.add_argument("--quick", action="store_true", help="three lengths and two links, to see that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.lengths, options.multiples, options.rounds = [64, 256, 1024], [0.5, 2.0], 2
    return options


def crossing(points: Mapping[float, float]) -> str:
    """Where a ratio by place falls through 1, both on logarithmic scales; or on which side it stays."""
    places = sorted(points)
    for low, high in itertools.pairwise(places):
        if points[low] > 1.0 >= points[high]:
            above, below = math.log(points[low]), math.log(points[high])
            share = above / (above - below)
            return f"{math.exp(math.log(low) + share * (math.log(high) - math.log(low))):.3g}"
    return f"below {places[0]:.3g}" if points[places[0]] <= 1.0 else f"above {places[-1]:.3g}"


def by_length(cells: Sequence[Cell], gbps_of: Mapping[float, float]) -> str:
    """The speed of the link from which on swapping is faster, for each length."""
    rows = []
    for num_tokens in sorted({cell.num_tokens for cell in cells}):
        here = [cell for cell in cells if cell.num_tokens == num_tokens]
        measured = crossing({gbps_of[c.multiple]: c.swap_s / c.recompute_s for c in here})
        predicted = crossing({gbps_of[c.multiple]: c.predicted_swap_s / c.predicted_recompute_s for c in here})
        rows.append([f"{num_tokens}", measured, predicted])
    return table(("tokens", "swap is faster from GB/s on, measured", "predicted"), rows)


def by_link(cells: Sequence[Cell], gbps_of: Mapping[float, float]) -> str:
    """The length from which on swapping is faster, for each link."""
    rows = []
    for multiple, gbps in gbps_of.items():
        here = [cell for cell in cells if cell.multiple == multiple]
        measured = crossing({float(c.num_tokens): c.swap_s / c.recompute_s for c in here})
        predicted = crossing({float(c.num_tokens): c.predicted_swap_s / c.predicted_recompute_s for c in here})
        rows.append([f"{gbps:.3f} ({multiple:g})", measured, predicted])
    return table(("link, GB/s (multiple)", "swap is faster from tokens on, measured", "predicted"), rows)


def verdict(cells: Sequence[Cell]) -> str:
    """How good the choices of "auto" were."""
    choices = [(choice, cell) for cell in cells for choice in cell.choices]
    right = sum(choice == cell.is_swap_faster for choice, cell in choices)
    chosen_s = sum(cell.swap_s if choice else cell.recompute_s for choice, cell in choices)
    best_s = sum(min(cell.swap_s, cell.recompute_s) for _, cell in choices)
    worst_s = sum(max(cell.swap_s, cell.recompute_s) for _, cell in choices)
    losses = [
        (cell.swap_s if choice else cell.recompute_s) / min(cell.swap_s, cell.recompute_s) for choice, cell in choices
    ]
    errors = [abs(cell.predicted_swap_s / cell.swap_s - 1) for cell in cells]
    recompute_errors = [abs(cell.predicted_recompute_s / cell.recompute_s - 1) for cell in cells]
    return (
        f'"auto" chose the faster one in {right} of {len(choices)} preemptions ({right / len(choices):.0%}); '
        f"its choices take {chosen_s / best_s:.2f} times as long as the best ones (the worst {worst_s / best_s:.2f}), "
        f"a single one at most {max(losses):.2f} times. Predictions miss by {median(errors):.0%} for swap and "
        f"{median(recompute_errors):.0%} for recomputation (medians)."
    )


def check(cell: Cell) -> str | None:
    """Why a cell is not what it says; None: it is."""
    if any(one.num_loaded_blocks for one in cell.recomputes):
        return "a recomputed victim was loaded"
    wanted = (cell.num_tokens - 1) // BLOCK_SIZE
    loaded = [one.num_loaded_blocks for one in cell.swaps]
    return None if all(abs(n - wanted) <= 1 for n in loaded) else f"loaded {loaded} blocks of {wanted}"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    quiet = Quiet()
    most = max(options.lengths)
    alone = PreemptionRig(options.model, options.threads, most, None)
    s_per_token, token_bytes = alone.s_per_token(), alone.bytes_per_token
    alone.close()
    even_gbps = 2 * token_bytes / s_per_token / 1e9
    print(
        heading(
            "kv_swap_crossover",
            f"{options.model}, {options.threads} threads; a token is predicted to take {s_per_token * 1e6:.0f} us to "
            f"compute and is {token_bytes:,} bytes: store and load take as long at {even_gbps:.3f} GB/s; milliseconds, "
            f"medians of {options.rounds} of each kind",
        ),
        flush=True,
    )
    cells: list[Cell] = []
    gbps_of = {multiple: multiple * even_gbps for multiple in sorted(options.multiples)}
    columns = (
        "tokens", "swap (of it until stored)", "recompute", "swap, predicted", "recompute, predicted", "faster",
        "auto chose it",
    )  # fmt: skip
    for multiple, gbps in gbps_of.items():
        rig = PreemptionRig(options.model, options.threads, most, gbps)
        rows = []
        for num_tokens in options.lengths:
            found = rig.measure(num_tokens, min(options.rounds, 2) if num_tokens > 1024 else options.rounds)
            cell = Cell(multiple, num_tokens, tuple(found[True]), tuple(found[False]))
            cells.append(cell)
            if (problem := check(cell)) is not None:
                print(f"INVALID at {num_tokens} tokens: {problem}")
            rows.append(cell.row())
        rig.close()
        print(f"Link at {gbps:.3f} GB/s, {multiple:g} times that:\n\n{table(columns, rows)}\n", flush=True)
    print(by_length(cells, gbps_of), "\n")
    print(by_link(cells, gbps_of), "\n")
    print(verdict(cells))
    print(quiet.note())


if __name__ == "__main__":
    main()
