"""However a text is cut, it ends at its first stop string; what is held back is only what may become one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.stop_strings import StopStringFilter

TEXT = st.text(alphabet="abc", max_size=24)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=6), min_size=1, max_size=4)


def _oracle(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The definition, on the whole text."""
    found = [(text.find(stop), index) for index, stop in enumerate(stops) if stop in text]
    if not found:
        return text, None
    start, index = min(found)
    return text[: start + len(stops[index]) if include else start], stops[index]


def _stream(pieces: list[str], stops: list[str], include: bool) -> tuple[list[str], str | None]:
    stop_filter = StopStringFilter(tuple(stops), include)
    shown = [stop_filter.push(piece) for piece in pieces]
    return [*shown, stop_filter.flush()], stop_filter.stopped


@settings(max_examples=600, deadline=None)
@given(pieces=st.lists(TEXT, max_size=8), stops=STOPS, include=st.booleans())
def test_any_pieces_give_the_text_before_the_first_stop(pieces: list[str], stops: list[str], include: bool) -> None:
    shown, stopped = _stream(pieces, stops, include)
    assert ("".join(shown), stopped) == _oracle("".join(pieces), stops, include)


@settings(max_examples=300, deadline=None)
@given(text=TEXT, stops=STOPS, include=st.booleans())
def test_only_a_possible_beginning_is_held_back(text: str, stops: list[str], include: bool) -> None:
    stop_filter = StopStringFilter(tuple(stops), include)
    shown = ""
    for position, character in enumerate(text, start=1):
        shown += stop_filter.push(character)
        if stop_filter.stopped is not None:
            break
        held = text[len(shown) : position]
        # what is held back begins a stop string, or is one that a longer one may still precede
        assert not held or any(stop.startswith(held) or held.startswith(stop) for stop in stops)
    assert len(text) - len(shown) <= max(map(len, stops)) or stop_filter.stopped is not None


def test_the_head_of_a_stop_string_is_never_shown() -> None:
    stop_filter = StopStringFilter(("beta gamma",), include_in_output=False)
    assert stop_filter.push("alpha beta ") == "alpha "
    assert stop_filter.push("gam") == ""
    assert stop_filter.push("ma delta") == ""
    assert stop_filter.stopped == "beta gamma"
    assert stop_filter.push("more") == "" and stop_filter.flush() == ""


def test_a_false_beginning_is_shown_at_once() -> None:
    stop_filter = StopStringFilter(("beta gamma",), include_in_output=False)
    assert stop_filter.push("beta gem") == "beta gem"


def test_a_beginning_at_the_end_of_the_text_is_shown_last() -> None:
    stop_filter = StopStringFilter(("beta",), include_in_output=False)
    assert (stop_filter.push("alpha be"), stop_filter.flush(), stop_filter.stopped) == ("alpha ", "be", None)


def test_an_earlier_start_wins_over_an_earlier_end() -> None:
    stop_filter = StopStringFilter(("b", "abc"), include_in_output=True)
    assert (stop_filter.push("xab"), stop_filter.stopped) == ("x", None)
    assert (stop_filter.push("c"), stop_filter.stopped) == ("abc", "abc")


def test_of_equal_starts_the_first_listed_wins() -> None:
    for stops, stopped in ((("ab", "abc"), "ab"), (("abc", "ab"), "abc")):
        stop_filter = StopStringFilter(stops, include_in_output=False)
        stop_filter.push("ab")
        stop_filter.push("c")
        assert stop_filter.stopped == stopped


def test_without_stop_strings_everything_passes() -> None:
    assert StopStringFilter((), include_in_output=False).push("text") == "text"


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStringFilter(("a", ""), include_in_output=False)


def test_text_that_is_all_beginnings_takes_linear_work() -> None:
    """100 000 characters that each extend a match of 1000: quadratic work would take minutes."""
    stop_filter = StopStringFilter(("a" * 1000 + "b",), include_in_output=False)
    shown = sum(len(stop_filter.push("a")) for _ in range(100_000))
    assert shown + len(stop_filter.flush()) == 100_000
