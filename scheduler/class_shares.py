"""Step time that each class is owed: no class is starved by those above it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scheduler.slo import SLOClasses

SHARE_WINDOW = 0.1
"""Of the time after which its requests expire: over that a class gets its share of step time."""


class ClassShares:
    """A deficit of step time for each class that has more to do than it was given.

    The deficit of a class is the most, over all windows of steps that end now and in which the class was always
    backlogged, by which its step time fell short of its share of the window. So time that others left unused is no
    debt, and a class that has nothing to do earns nothing. After Shreedhar and Varghese, Deficit Round Robin
    (SIGCOMM 1995).

    Where a class that is owed gets the whole next step, and each window is longer than the longest step / the smallest
    share, no deficit exceeds share * (window + step) + (classes - 1) * step.
    """

    def __init__(self, shares: Mapping[str, float], windows_s: Mapping[str, float]) -> None:
        """
        Args:
            shares: of step time, 0..1 each, by class; 1 in all at most. At equal need, the first is owed first.
            windows_s: seconds of step time by which a class may be behind, by class: as long as it can wait.

        Raises:
            ValueError: a share lies outside 0..1, they exceed 1 in all, or the window is not above 0.
        """
        for name, share in shares.items():
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"class {name!r}: share is {share}, it must lie in 0..1")
        if sum(shares.values()) > 1.0 + 1e-9:
            raise ValueError(f"shares add up to {sum(shares.values()):.3f}, the limit is 1")
        for name in shares:
            if not windows_s[name] > 0.0:
                raise ValueError(f"class {name!r}: the window is {windows_s[name]} s, it must be above 0")
        self._shares = dict(shares)
        self._windows_s = {name: windows_s[name] for name in shares}
        self._deficits_s = dict.fromkeys(shares, 0.0)

    @classmethod
    def of(cls, classes: SLOClasses) -> ClassShares:
        """As the classes' table says."""
        return cls({c.name: c.share for c in classes}, {c.name: SHARE_WINDOW * c.max_wait_s for c in classes})

    def observe(self, duration_s: float, tokens_by_class: Mapping[str, int], backlogged: Collection[str]) -> None:
        """A step took that long.

        Args:
            tokens_by_class: rows of the step; its time is split by them.
            backlogged: classes that had more to do than the step gave them.
        """
        num_tokens = sum(tokens_by_class.values())
        s_per_token = duration_s / num_tokens if num_tokens else 0.0
        for name, share in self._shares.items():
            if name in backlogged:
                got_s = tokens_by_class.get(name, 0) * s_per_token
                self._deficits_s[name] = max(0.0, self._deficits_s[name] + share * duration_s - got_s)
            else:
                self._deficits_s[name] = 0.0

    def owed(self) -> str | None:
        """The class that is behind by most of its windows, if by more than one; None: all have their shares."""
        most, name = 1.0, None
        for candidate, share in self._shares.items():
            if share > 0.0:
                num_windows = self._deficits_s[candidate] / (share * self._windows_s[candidate])
                if num_windows > most:
                    most, name = num_windows, candidate
        return name

    def is_behind(self, name: str) -> bool:
        """Whether the class is behind by half of its window: it will be owed soon, unless it is served."""
        return self._deficits_s[name] > 0.5 * self._shares[name] * self._windows_s[name]

    def deficit_s(self, name: str) -> float:
        """Seconds of step time that the class is behind its share; 0 where it has nothing to do."""
        return self._deficits_s[name]

    def check(self) -> None:
        """Assert that no class is ahead, and none without a share is owed anything."""
        for name, deficit_s in self._deficits_s.items():
            assert deficit_s >= 0.0, f"{name}: {deficit_s} s of debt"
            assert deficit_s == 0.0 or self._shares[name] > 0.0, f"{name}: owed without a share"
