"""One choice's text: the same however the engine cuts the tokens, cut at stops, billed up to them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import ChoiceDelta
from engine.sampling_params import SamplingParams
from server.choice_text import ChoiceText, ChoiceUpdate
from server.generation_plan import GenerationPlan
from tests.fake_async_engine import fake_logprob
from tests.tiny_tokenizers import EOS, tiny_gpt2

TOKENIZER = tiny_gpt2()


def _plan(stops: tuple[str, ...] = (), includes_stop: bool = False, **sampling: Any) -> GenerationPlan:
    return GenerationPlan(
        prompts=((9, 9),),
        n=1,
        sampling=SamplingParams(max_tokens=1000, **sampling),
        stop_strings=stops,
        includes_stop=includes_stop,
    )


def _feed(
    plan: GenerationPlan, ids: list[int], cuts: list[int], reason: str, stop_token_id: int | None
) -> list[ChoiceUpdate]:
    """The updates of a choice whose tokens come in parts that end at `cuts`."""
    choice = ChoiceText(0, plan, TOKENIZER)
    ends = sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)})
    updates, start = [], 0
    for end in ends:
        is_last = end == len(ids)
        part = tuple(ids[start:end])
        updates.append(
            choice.push(
                ChoiceDelta(
                    group_id="g",
                    choice=0,
                    token_ids=part,
                    logprobs=tuple(fake_logprob(token_id, 1) for token_id in part),
                    finish_reason=reason if is_last else None,
                    stop_token_id=stop_token_id if is_last else None,
                )
            )
        )
        start = end
        if choice.is_finished:
            break
    assert choice.num_tokens == sum(len(update.token_ids) for update in updates)
    return updates


_IDS = st.lists(st.integers(3, TOKENIZER.vocab_size - 1), min_size=1, max_size=24)
_CUTS = st.lists(st.integers(1, 24), max_size=8)
_STOPS = st.lists(st.sampled_from(["a", "e ", "the", "\n", "о", "😀", "lazy dog", "\ufffd"]), max_size=3).map(tuple)


@settings(max_examples=200, deadline=None)
@given(ids=_IDS, cuts=_CUTS, stops=_STOPS, includes_stop=st.booleans())
def test_text_does_not_depend_on_how_tokens_are_cut(
    ids: list[int], cuts: list[int], stops: tuple[str, ...], includes_stop: bool
) -> None:
    plan = _plan(stops, includes_stop)
    whole, parts = (_feed(plan, ids, some, "length", None) for some in ([], cuts))
    text = "".join(update.text for update in parts)
    assert text == "".join(update.text for update in whole)
    assert [i for u in parts for i in u.token_ids] == [i for u in whole for i in u.token_ids]
    assert (parts[-1].finish_reason, parts[-1].stop_reason) == (whole[-1].finish_reason, whole[-1].stop_reason)
    plain = TOKENIZER.decode(ids, skip_special_tokens=True)
    found = [place for stop in stops if (place := plain.find(stop)) >= 0]
    if not found:
        assert text == plain and parts[-1].finish_reason == "length"
    else:
        assert parts[-1].finish_reason == "stop" and parts[-1].stop_reason in stops
        assert plain.startswith(text)
        if not includes_stop:
            assert len(text) == min(found)


def test_tokens_after_a_stop_string_in_the_same_delta_are_dropped() -> None:
    ids = TOKENIZER.encode("the fox jumps over", add_special_tokens=False, parse_special=False)
    (update,) = _feed(_plan(("fox",)), ids, [], "length", None)
    kept = TOKENIZER.decode(update.token_ids, skip_special_tokens=False)
    assert update.text == "the " and "fox" in kept and "jumps" not in kept
    assert len(update.logprobs) == len(update.token_ids) < len(ids)
    assert (update.finish_reason, update.stop_reason) == ("stop", "fox")


def test_end_token_is_billed_and_not_shown() -> None:
    ids = [*TOKENIZER.encode("the", add_special_tokens=False, parse_special=False), EOS]
    (update,) = _feed(_plan(), ids, [], "stop", EOS)
    assert update.text == "the" and update.token_ids[-1] == EOS
    assert (update.finish_reason, update.stop_reason) == ("stop", None)


def test_engines_failure_is_not_hidden_by_a_stop_string() -> None:
    ids = TOKENIZER.encode("the fox", add_special_tokens=False, parse_special=False)
    (update,) = _feed(_plan(("fox",)), ids, [], "error", None)
    assert update.finish_reason == "error"
