"""The limit of locked memory."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from offload.locked_memory import lockable_bytes

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "capabilities", "expected"),
    [
        (8 * 1024**2, "0000000000000000", 8 * 1024**2),
        (0, "00000000a80425fb", 0),  # a container's usual ones, without CAP_IPC_LOCK
        (8 * 1024**2, "000001ffffffffff", None),
        (8 * 1024**2, "0000000000004000", None),
        (UNLIMITED, "0000000000000000", None),
    ],
)
def test_the_soft_limit_holds_for_who_is_not_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: int, capabilities: str, expected: int | None
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, UNLIMITED))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\nCapBnd:\t0\n")
    assert lockable_bytes(tmp_path) == expected


def test_without_linux_the_limit_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, UNLIMITED))
    assert lockable_bytes(tmp_path) == 4096
