"""Loads are cut by layers, and the larger parts come first."""

from __future__ import annotations

import pytest

from offload.load_parts import first_layers, part_ranges


def test_parts_cover_all_layers_and_the_larger_come_first() -> None:
    for num_layers in range(1, 41):
        for num_parts in range(1, num_layers + 1):
            firsts = first_layers(num_layers, num_parts)
            sizes = [end - first for first, end in zip(firsts, (*firsts[1:], num_layers), strict=True)]
            assert firsts[0] == 0 and len(sizes) == num_parts and sum(sizes) == num_layers
            assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1, (num_layers, num_parts, sizes)


def test_ranges_are_whole_layers() -> None:
    assert part_ranges(50, 5, 2) == ((0, 30), (30, 20))
    assert part_ranges(7, 1, 1) == ((0, 7),)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [((10, 5, 6), "5 layers in 6 parts"), ((10, 5, 0), "in 0 parts"), ((11, 5, 1), "11 bytes has 5 layers")],
)
def test_nonsense_is_refused(arguments: tuple[int, int, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        part_ranges(*arguments)
