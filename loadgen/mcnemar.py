"""McNemar's exact test: did one of two runs meet more of the same requests?

Only requests that one run met and the other did not tell them apart. Were there no difference, each of them would go
either way like a coin. Source: Q. McNemar, Psychometrika 12 (1947) 153-157, with the binomial distribution itself in
place of the normal one.
"""

from __future__ import annotations


def mcnemar_exact(num_only_first: int, num_only_second: int) -> float:
    """The two-sided p-value of the discordant pairs; 1 where there are none.

    Args:
        num_only_first: pairs that the first run alone met.
        num_only_second: pairs that the second run alone met.
    """
    num_pairs = num_only_first + num_only_second
    ways = tail = 1  # of 0 out of num_pairs
    for taken in range(1, min(num_only_first, num_only_second) + 1):
        ways = ways * (num_pairs - taken + 1) // taken
        tail += ways
    share: float = 2 * tail / 2**num_pairs
    return min(share, 1.0)
