"""Host memory by owner, under a cap and within what the machine has; in main memory and in a file."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from offload.host_backing import AnonymousBacking, FileBacking, HostBacking
from offload.host_slabs import HostMemoryKind, HostSlabs, Span, chunks, lay_out
from offload.host_tier import HostMemoryError, HostTier

SIZES = (1000, 256, 5000)
KIB = 1024


class Refusing:
    """A system without memory."""

    takes_memory = True

    def allocate(self, sizes: Sequence[int]) -> HostSlabs:
        raise MemoryError("Cannot allocate memory")


def tier(limit_bytes: int | None = None, available: int | None = None, backing: HostBacking | None = None) -> HostTier:
    return HostTier(limit_bytes, backing, lambda: available)


def test_owners_have_slabs_of_their_own_and_the_ledger_adds_up() -> None:
    made = tier(20 * KIB)
    weights, kv = made.take("weights", SIZES), made.take("kv", (4096,))
    for index, slab in enumerate((*weights.slabs, *kv.slabs)):
        slab.fill_(index)
    assert [len(slab) for slab in weights.slabs] == list(SIZES)
    assert all(int(slab.min()) == int(slab.max()) == i for i, slab in enumerate((*weights.slabs, *kv.slabs)))
    ledger = made.ledger()
    assert (ledger["weights"], ledger["kv"], ledger["rounding"]) == (6256, 4096, 24 + 120)
    assert ledger["weights"] + ledger["kv"] + ledger["free"] == 20 * KIB
    assert made.kinds == {HostMemoryKind.ANONYMOUS} and not weights.remarks
    made.check()
    made.give_back("weights")
    assert made.used_bytes == 4096 and made.free_bytes == 16 * KIB
    made.close()
    made.close()
    assert made.used_bytes == 0


def test_the_cap_is_refused_with_the_value_the_limit_and_the_way_out() -> None:
    made = tier(8000)
    made.take("weights", SIZES)
    with pytest.raises(HostMemoryError, match=r"kv needs 2,000 .*--host-memory allows 8,000 \(held: weights 6,256\)"):
        made.take("kv", (2000,))
    made.take("kv", (8000 - 6256,))
    assert made.free_bytes == 0
    made.check()


def test_more_than_the_machine_has_is_refused_before_it_is_taken() -> None:
    made = tier(None, 6255)
    assert made.free_bytes == 6255
    with pytest.raises(HostMemoryError, match=r"needs 6,256 bytes.* 6,255 can be had.*--host-memory.*directory"):
        made.take("weights", SIZES)
    assert made.used_bytes == 0 and tier(None, 6256).take("weights", SIZES)


def test_a_system_that_refuses_is_an_error_with_the_bytes() -> None:
    with pytest.raises(HostMemoryError, match=r"6,256 bytes.*Cannot allocate memory.*--host-memory"):
        tier(backing=Refusing()).take("weights", SIZES)


def test_an_owner_takes_once_and_gives_back_what_it_has() -> None:
    made = tier()
    with pytest.raises(ValueError, match="kv holds no host memory"):
        made.give_back("kv")
    made.take("weights", SIZES)
    with pytest.raises(ValueError, match="weights holds 6,256 bytes"):
        made.take("weights", SIZES)
    with pytest.raises(ValueError, match="a slab of 0 bytes"):
        made.take("kv", (0,))
    assert made.free_bytes is None
    assert made.take("nothing", ()).slabs == ()


def test_a_file_holds_what_main_memory_does_not(tmp_path: Path) -> None:
    made = tier(20 * KIB, available=0, backing=FileBacking(tmp_path))
    assert made.free_bytes == 20 * KIB
    held = made.take("weights", SIZES)
    for index, slab in enumerate(held.slabs):
        slab.fill_(index + 1)
    made.check()
    assert held.kind is HostMemoryKind.FILE and held.rounding_bytes == 8192 - 6256
    assert [int(slab.long().sum()) for slab in held.slabs] == [1000, 512, 15_000]
    assert list(tmp_path.iterdir()) == [], "the file has no name: nobody must clean up after a process that was killed"
    assert FileBacking(tmp_path).allocate(()).slabs == ()


def test_a_file_that_cannot_be_had_is_an_error_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostMemoryError, match="no-such-folder cannot be had: No such file"):
        tier(backing=FileBacking(tmp_path / "no-such-folder")).take("weights", SIZES)

    def full(_descriptor: int, _offset: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HostMemoryError, match=r"6,256 bytes .*No space left on device; give another --host-mem"):
        tier(backing=FileBacking(tmp_path)).take("weights", SIZES)
    assert list(tmp_path.iterdir()) == []


def test_both_kinds_give_the_same_slabs(tmp_path: Path) -> None:
    for backing in (AnonymousBacking(), FileBacking(tmp_path)):
        held = backing.allocate(SIZES)
        assert [slab.dtype for slab in held.slabs] == [torch.uint8] * 3
        starts = [slab.data_ptr() - held.slabs[0].data_ptr() for slab in held.slabs]
        assert starts == [span.start for span in lay_out(SIZES)] == [0, 1024, 1280]


def test_chunks_are_whole_slabs_of_whole_pages() -> None:
    spans = lay_out([3 * KIB, 5 * KIB, 1, 20 * KIB, 4 * KIB], 4 * KIB)
    found = list(chunks(spans, 4 * KIB, 16 * KIB))
    assert found == [Span(0, 16 * KIB), Span(16 * KIB, 20 * KIB), Span(36 * KIB, 4 * KIB)]
    assert list(chunks((), 4 * KIB, 16 * KIB)) == []
