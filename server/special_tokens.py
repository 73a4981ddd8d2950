"""Where special tokens stand in a text, and how text that users write is kept from becoming one.

A marker (a Unicode noncharacter that the request does not use) is put inside every special token's text that a user
wrote. What is then found in the rendered prompt was written by the template. Searches go through windows, because a
regular expression holds the interpreter for as long as it runs.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from tokenizers import AddedToken

_WINDOW_CHARS = 1 << 16
_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""Unicode White_Space, as the tokenizers library strips it."""
NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))
"""Never assigned; for private use inside a program (Unicode, section 23.7)."""


@dataclasses.dataclass(frozen=True, slots=True)
class SpecialToken:
    token_id: int
    text: str
    eats_left: bool = False
    """It swallows the white space before it."""
    eats_right: bool = False

    @classmethod
    def of(cls, token_id: int, token: AddedToken) -> SpecialToken:
        return cls(token_id, token.content, eats_left=token.lstrip, eats_right=token.rstrip)


class SpecialTokens:
    """The special tokens of a vocabulary. Immutable."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        self._max_chars = max(map(len, self._by_text), default=0)
        self._pattern = re.compile(_trie_pattern(self._by_text))
        self._prefixes = {text[:length] for text in self._by_text for length in range(1, len(text))}

    def __len__(self) -> int:
        return len(self._by_text)

    def is_in(self, text: str) -> bool:
        return self._search(text, 0) is not None

    def defuse(self, text: str, marker: str) -> str:
        """`text` with `marker` inside each special token, and after a beginning of one at the end of the text.

        The latter because a template may put two texts side by side. White space at the ends stays at the ends, so
        that templates that trim still do.
        """
        pieces, done, start = [], 0, 0
        while (match := self._search(text, start)) is not None:
            start = match.start() + 1  # inside the match: another token may begin there
            pieces += [text[done:start], marker]
            done = start
        pieces.append(text[done:])
        return self._defuse_end("".join(pieces), marker)

    def _defuse_end(self, text: str, marker: str) -> str:
        body = text.rstrip()
        for length in range(1, min(self._max_chars, len(body) + 1)):
            if body[-length:] in self._prefixes:
                return body + marker + text[len(body) :]
        return text

    def split(self, text: str, marker: str) -> Iterator[str | int]:
        """The ids of special tokens in a defused text, and the texts between them without `marker`."""
        done = start = 0
        eats_right = False
        while (match := self._search(text, start)) is not None:
            token = self._by_text[match.group()]
            start = match.end()
            if len(token.text) == 1 and text.startswith(marker, start):
                continue  # too short for a marker inside: it stands behind
            yield from _plain(text[done : match.start()], marker, left=eats_right, right=token.eats_left)
            yield token.token_id
            done, eats_right = start, token.eats_right
        yield from _plain(text[done:], marker, left=eats_right, right=False)

    def _search(self, text: str, start: int) -> re.Match[str] | None:
        """The first special token from `start` on, the longest where several begin."""
        while start < len(text):
            end = start + _WINDOW_CHARS
            match = self._pattern.search(text, start, end + self._max_chars)
            if match is not None and match.start() < end:
                return match
            start = end
        return None


def _plain(text: str, marker: str, *, left: bool, right: bool) -> Iterator[str]:
    if left:
        text = text.lstrip(_WHITESPACE)
    if right:
        text = text.rstrip(_WHITESPACE)
    if text := text.replace(marker, ""):
        yield text


class _Trie(dict[str, "_Trie"]):
    """Texts by their characters; an empty key ends one."""

    def add(self, text: str) -> None:
        node = self
        for character in text:
            node = node.setdefault(character, _Trie())
        node[""] = _Trie()

    def pattern(self) -> str:
        """A regular expression that prefers the longest text and takes one step a character."""
        branches = [re.escape(character) + child.pattern() for character, child in self.items() if character]
        if not branches:
            return ""
        if "" in self:
            return f"(?:{'|'.join(branches)})?"
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _trie_pattern(texts: Iterable[str]) -> str:
    trie = _Trie()
    for text in texts:
        trie.add(text)
    return trie.pattern() or "(?!)"  # (?!) matches nothing


def unused_noncharacter(texts: Iterable[str], taken: str = "") -> str | None:
    """A noncharacter that none of `texts` holds and that is not in `taken`; None: all are used."""
    free = [character for character in NONCHARACTERS if character not in taken]
    for text in texts:
        if not free:
            return None
        free = [character for character in free if character not in text]
    return free[0] if free else None
