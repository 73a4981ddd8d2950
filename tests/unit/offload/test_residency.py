"""The order in which layers are streamed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.residency import ResidencyOrder, interval_layout


@given(st.integers(1, 130))
def test_the_sets_are_nested_and_begin_with_the_last_layer(num_layers: int) -> None:
    order = ResidencyOrder.spread(num_layers)
    assert order.streamed(0) == frozenset() and order.streamed(num_layers) == set(range(num_layers))
    assert order.streamed(1) == {num_layers - 1}
    for k in range(num_layers):
        assert order.streamed(k) < order.streamed(k + 1)


@given(st.integers(1, 130), st.data())
def test_streamed_layers_lie_evenly_in_the_circle_of_steps(num_layers: int, data: st.DataObject) -> None:
    """No gap between neighbours is much over twice the least: what a radical inverse in base 2 promises."""
    k = data.draw(st.integers(1, num_layers))
    layers = sorted(ResidencyOrder.spread(num_layers).streamed(k))
    gaps = [(b - a - 1) % num_layers + 1 for a, b in zip(layers, [*layers[1:], layers[0]], strict=True)]
    assert sum(gaps) == num_layers
    assert max(gaps) <= 2 * (num_layers / k) + 1
    if k & (k - 1) == 0:  # a power of two: as even as whole layers can be, to one layer
        assert max(gaps) - min(gaps) <= 1


def test_thirty_layers() -> None:
    order = ResidencyOrder.spread(30)
    assert sorted(order.streamed(2)) == [14, 29]
    assert sorted(order.streamed(4)) == [7, 14, 22, 29]


def test_the_last_of_every_group() -> None:
    assert interval_layout(32, 8) == (7, 15, 23, 31)
    assert interval_layout(30, 8) == (7, 15, 23)
    assert interval_layout(3, 1) == (0, 1, 2)
    assert interval_layout(3, 4) == ()
    with pytest.raises(ValueError, match="the interval is 0"):
        interval_layout(3, 0)


@given(st.integers(1, 60), st.integers(1, 70))
def test_an_interval_is_a_set_of_the_order(num_layers: int, interval: int) -> None:
    order = ResidencyOrder.of_interval(num_layers, interval)
    layout = interval_layout(num_layers, interval)
    assert order.streamed(len(layout)) == set(layout)
    assert order.streamed(num_layers) == set(range(num_layers))


def test_what_is_no_order_is_refused() -> None:
    with pytest.raises(ValueError, match="not an order of all layers"):
        ResidencyOrder((0, 2))
    with pytest.raises(ValueError, match="not an order of all layers"):
        ResidencyOrder(())
    with pytest.raises(ValueError, match="4 layers to stream, the model has 3"):
        ResidencyOrder.spread(3).streamed(4)
