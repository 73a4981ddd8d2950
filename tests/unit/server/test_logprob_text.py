"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from engine.messages import TokenLogprob
from server.logprob_text import CompletionLogprobWriter, chat_logprobs
from server.tokenizer import Tokenizer
from tests.tiny_tokenizers import BOS, EOS, tiny_gpt2, tiny_spm


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def _record(token_id: int, logprob: float = -0.5, top: tuple[tuple[int, float], ...] = ()) -> TokenLogprob:
    return TokenLogprob(token_id, logprob, tuple(pair[0] for pair in top), tuple(pair[1] for pair in top))


def test_chat_entry_has_text_bytes_and_alternatives() -> None:
    tokenizer = tiny_gpt2()
    the, fox = _ids(tokenizer, "the"), _ids(tokenizer, " fox")
    record = _record(the[0], -0.5, top=((fox[0], -0.1), (the[0], -0.5), (EOS, -9999.0)))
    [entry] = chat_logprobs(tokenizer, [record], num_top=2)
    assert entry["token"] == tokenizer.token_text(the[0])
    assert bytes(entry["bytes"]).decode() == entry["token"]
    assert (entry["logprob"], [top["logprob"] for top in entry["top_logprobs"]]) == (-0.5, [-0.1, -0.5])
    assert entry["top_logprobs"][0]["token"].startswith(" f")
    assert chat_logprobs(tokenizer, [record], num_top=0)[0]["top_logprobs"] == []


def test_bytes_of_chat_entries_are_the_text() -> None:
    tokenizer = tiny_spm(add_space_prefix=False)
    text = "hello 漢 👨‍👩‍👧"
    entries = chat_logprobs(tokenizer, [_record(token_id) for token_id in _ids(tokenizer, text)], num_top=0)
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == text
    assert entries[-1]["token"].startswith("bytes:\\x")


def test_completion_offsets_point_into_the_text() -> None:
    tokenizer = tiny_gpt2()
    text = "the 漫 fox"
    records = [_record(token_id) for token_id in _ids(tokenizer, text)]
    writer = CompletionLogprobWriter(tokenizer, 0, skip_special_tokens=True)
    parts = [writer.write(records[:2]), writer.write(records[2:])]
    tokens = parts[0].tokens + parts[1].tokens
    offsets = parts[0].text_offset + parts[1].text_offset
    for token, offset in zip(tokens, offsets, strict=True):
        if token.startswith("bytes:"):
            assert text[offset] == "漫"
        else:
            assert text.startswith(token, offset)


def test_completion_has_the_chosen_token_among_the_top() -> None:
    tokenizer = tiny_gpt2()
    the, fox = _ids(tokenizer, "the")[0], _ids(tokenizer, " fox")[0]
    writer = CompletionLogprobWriter(tokenizer, 1, skip_special_tokens=True)
    written = writer.write([_record(the, -3.0, top=((fox, -0.1), (EOS, -5.0)))])
    assert written.top_logprobs == [{tokenizer.token_text(fox): -0.1, tokenizer.token_text(the): -3.0}]
    assert set(written.as_dict()) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}


def test_parts_of_characters_are_told_apart() -> None:
    """Were both U+FFFD, one would hide the other among the alternatives."""
    tokenizer = tiny_spm()
    first, second = _ids(tokenizer, "漢")[1:3]
    writer = CompletionLogprobWriter(tokenizer, 2, skip_special_tokens=True)
    [top] = writer.write([_record(first, -0.1, top=((first, -0.1), (second, -0.2)))]).top_logprobs
    assert top is not None and len(top) == 2


def test_echoed_prompt_begins_without_a_logprob() -> None:
    tokenizer = tiny_gpt2()
    writer = CompletionLogprobWriter(tokenizer, 1, skip_special_tokens=True)
    first = writer.first_prompt_token(BOS)
    assert first.as_dict() == {"tokens": ["<s>"], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]}
    [the] = _ids(tokenizer, "the")[:1]
    assert writer.write([_record(the)]).text_offset == [0], "the begin token is not in the text"
