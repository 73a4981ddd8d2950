"""Common English words: nearly all tokenizers make one token of each, with the space before it."""

from __future__ import annotations

import itertools
import random

_TEXT = """
the and that have with this from they which one would all there their what out about who get make can like time
just him know take people into year your good some could them see other than then now look only come over think
also back after use two how our work first well way even new want because any these give day most find here thing
many life tell very when down should call world school still try last ask need feel three state never become
between high really something most another family own leave put old while mean keep student why let great same big
group begin seem country help talk where turn problem every start hand might show part against place such again few
case week company system each right program hear question during play run small number off always move night live
point believe hold today bring happen next without before large million must home under water room write mother
area national money story young fact month different lot study book eye job word though business issue side kind
four head far black long both little house yes since provide service around friend important father sit away until
power hour game often line end among ever stand bad lose member pay law meet car city almost include continue set
later community much name five once white least president learn real change team minute best several idea kid body
information nothing ago lead social understand whether watch together follow parent stop face anything create public
already speak others read level allow add office spend door health person art sure war history party within grow
result open morning walk reason low win research girl guy early food moment himself air teacher force offer
"""

WORDS: tuple[str, ...] = tuple(sorted(set(_TEXT.split())))
"""Each once."""

NUM_HEAD_WORDS = 3
"""Words at the head of a text that no other one begins with."""
_HEAD_SPACE = len(WORDS) ** NUM_HEAD_WORDS
_POOL_WORDS = 1 << 17


def head_words(number: int) -> list[str]:
    """Words that tell `number` apart: its digits, so that texts differ from their first word on where they can."""
    number %= _HEAD_SPACE
    head = []
    for _ in range(NUM_HEAD_WORDS):
        number, digit = divmod(number, len(WORDS))
        head.append(WORDS[digit])
    return head


class WordPool:
    """Long texts in a moment: pieces of one that is made beforehand. The same seed gives the same texts.

    A prompt of 100,000 words must not hold up the requests that are due meanwhile.
    """

    def __init__(self, seed: str) -> None:
        rng = random.Random(seed)
        words = rng.choices(WORDS, k=_POOL_WORDS)
        self._text = " ".join(words)
        self._starts = [0, *itertools.accumulate(len(word) + 1 for word in words)]
        """Of each word, and the end of the last one with a space."""
        self._head_offset = rng.randrange(_HEAD_SPACE)

    def text(self, number: int, num_words: int) -> str:
        """Text `number` of `num_words` words. A longer one begins with a shorter one of the same number."""
        parts = head_words(number + self._head_offset)[:num_words]
        left = num_words - len(parts)
        first = (number * 7_919) % _POOL_WORDS
        while left > 0:
            last = min(first + left, _POOL_WORDS)
            parts.append(self._text[self._starts[first] : self._starts[last] - 1])
            left -= last - first
            first = 0
        return " ".join(parts)
