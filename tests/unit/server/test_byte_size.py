"""Sizes as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.byte_size import format_byte_size, parse_byte_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("17B", 17),
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("1.5gib", 3 * 2**29),
        (" 3 kB ", 3000),
        ("8g", 8 * 2**30),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_a_size_is_read_exactly(text: str, num_bytes: int) -> None:
    assert parse_byte_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "-1", "1e9", "GiB", "12 parsecs", "1.GiB", "1.5.2GB", "٣GiB", "nan"])
def test_what_is_no_size_is_refused_with_the_value_and_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: write a number and a unit, such as 512MiB"):
        parse_byte_size(text)


def test_a_size_is_shown_in_its_largest_exact_unit() -> None:
    shown = [format_byte_size(n) for n in (0, 1000, 2048, 512 * 2**20, 3 * 2**30, 3 * 2**30 + 2**20, 1_500_000_000)]
    assert shown == ["0B", "1000B", "2KiB", "512MiB", "3GiB", "3073MiB", "1.4GiB"]


@given(st.integers(1, 2**20), st.sampled_from([1, 2**10, 2**20, 2**30, 2**40]))
def test_what_is_shown_exactly_reads_back_the_same(count: int, unit: int) -> None:
    text = format_byte_size(count * unit)
    if "." not in text:
        assert parse_byte_size(text) == count * unit
