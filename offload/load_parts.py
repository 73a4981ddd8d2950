"""Into which parts, by layers, the loads of KV blocks are cut: a step that computes beside one waits for each apart."""

from __future__ import annotations


def first_layers(num_layers: int, num_parts: int) -> tuple[int, ...]:
    """The first layer of each part. They differ by at most one layer, the larger ones first.

    The link starts the larger of two equally urgent transfers first, so the parts arrive in their order.

    Raises:
        ValueError: there are fewer layers than parts, or no part.
    """
    if not 1 <= num_parts <= num_layers:
        raise ValueError(f"{num_layers} layers in {num_parts} parts; each part needs a layer, and there must be one")
    size, num_larger = divmod(num_layers, num_parts)
    return tuple(part * size + min(part, num_larger) for part in range(num_parts))


def part_ranges(block_bytes: int, num_layers: int, num_parts: int) -> tuple[tuple[int, int], ...]:
    """Bytes of a block in each part: (first, how many). All layers take equally many, one behind the other.

    Raises:
        ValueError: they do not, or as `first_layers` says.
    """
    firsts = first_layers(num_layers, num_parts)
    layer_bytes, rest = divmod(block_bytes, num_layers)
    if rest:
        raise ValueError(f"a block of {block_bytes:,} bytes has {num_layers} layers, which does not divide it")
    ends = (*firsts[1:], num_layers)
    return tuple((first * layer_bytes, (end - first) * layer_bytes) for first, end in zip(firsts, ends, strict=True))
