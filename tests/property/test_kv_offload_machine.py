"""Any order of moves, arrivals, faults and damage: each move ends once, as a model of places and contents says."""

from __future__ import annotations

import dataclasses
import errno
import tempfile
from pathlib import Path

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from offload.kv_directory import block_path
from offload.kv_disk import DiskTier
from offload.kv_file import KVFileFormat
from offload.kv_request import BlockMove, MoveKind, MoveOutcome, MovePurpose
from tests.kv_tiers import (
    BLOCK_BYTES,
    FINGERPRINT,
    NUM_DEVICE_BLOCKS,
    NUM_SLOTS,
    FaultyFiles,
    HandleLink,
    InlineLanes,
    block_of,
    key,
    make_tiers,
)

DONE, FAILED, CORRUPT, ABSENT, FULL = MoveOutcome
STORE, LOAD, WRITE, READ, DELETE, TOUCH = MoveKind
NUM_FILES = 4
NUM_NAMES = 6
NUM_PARTS = 3
FILE_BYTES = KVFileFormat(FINGERPRINT.digest, BLOCK_BYTES).file_bytes
DISK_BYTES = KVFileFormat(FINGERPRINT.digest, BLOCK_BYTES).disk_bytes
ERRORS = {errno.EIO: FAILED, errno.ENOSPC: FULL, errno.EDQUOT: FULL}


@dataclasses.dataclass
class Slot:
    """What a host slot should hold."""

    content: Tensor | None = None
    """None: nothing whole."""
    is_damaged: bool = False
    num_leases: int = 0
    is_written: bool = False
    """A move writes it."""


@dataclasses.dataclass
class Expected:
    """A move over the link: what its blocks should be when it has ended well."""

    move: BlockMove
    contents: list[Tensor]
    corrupt: list[bool]
    before: list[Tensor]
    is_failed: bool = False
    handles: list[object] = dataclasses.field(default_factory=list)


class KVOffloadMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.link = HandleLink(1e6)
        self.files = FaultyFiles()
        self.disk = DiskTier(Path(self.folder.name), FINGERPRINT, BLOCK_BYTES, NUM_FILES * DISK_BYTES, self.files)
        self.tiers = make_tiers(
            self.link, num_load_parts=NUM_PARTS, check_share=1.0, disk=self.disk, lanes=InlineLanes()
        )
        self.slots = [Slot() for _ in range(NUM_SLOTS)]
        self.device_leases = [0] * NUM_DEVICE_BLOCKS
        self.on_disk: dict[int, Tensor | None] = {}  # None: the file is damaged
        self.expected: dict[int, Expected] = {}
        self.num_moves = 0
        self.num_results = 0
        self.failed_handles: set[object] = set()

    def next_id(self) -> int:
        self.num_moves += 1
        return self.num_moves

    def one(self, kind: MoveKind, number: int, slot: tuple[int, ...] = ()) -> MoveOutcome:
        """Of a move on the disk, which ends at once."""
        transfer_id = self.next_id()
        positions = (number,) if kind in (WRITE, TOUCH) else ()
        move = BlockMove(
            transfer_id, kind, MovePurpose.WAITING, (key(number),), host_slots=slot, positions=positions
        )  # fmt: skip
        self.tiers.offload.begin([move])
        (result,) = [each for each in self.collect() if each[0] == transfer_id]
        return result[1][0]

    @rule(device=st.sets(st.integers(0, NUM_DEVICE_BLOCKS - 1), min_size=1, max_size=3), data=st.data())
    def store(self, device: set[int], data: st.DataObject) -> None:
        free = [index for index, slot in enumerate(self.slots) if not slot.num_leases]
        blocks = [block for block in sorted(device) if not self.device_leases[block]][: len(free)]
        if not blocks:
            return
        hosts = data.draw(st.permutations(free))[: len(blocks)]
        purpose = data.draw(st.sampled_from([MovePurpose.FREES_BLOCKS, MovePurpose.BACKGROUND]))
        move = BlockMove(
            self.next_id(), STORE, purpose, tuple(key(block) for block in blocks), tuple(blocks), tuple(hosts)
        )
        contents = [self.tiers.device[block].clone() for block in blocks]
        for block, host in zip(blocks, hosts, strict=True):
            self.device_leases[block] += 1
            self.slots[host] = Slot(num_leases=1, is_written=True)
        self.begin(Expected(move, contents, [False] * len(blocks), []))

    @rule(device=st.sets(st.integers(0, NUM_DEVICE_BLOCKS - 1), min_size=1, max_size=3), data=st.data())
    def load(self, device: set[int], data: st.DataObject) -> None:
        """Several may read one slot."""
        readable = [index for index, slot in enumerate(self.slots) if not slot.is_written]
        blocks = [block for block in sorted(device) if not self.device_leases[block]][: len(readable)]
        if not blocks:
            return
        hosts = data.draw(st.permutations(readable))[: len(blocks)]
        move = BlockMove(
            self.next_id(), LOAD, MovePurpose.ADMITTED, tuple(map(key, hosts)), tuple(blocks), tuple(hosts)
        )
        slots = [self.slots[host] for host in hosts]
        corrupt = [slot.content is None or slot.is_damaged for slot in slots]
        contents = [self.tiers.slot(host).clone() for host in hosts]
        before = [self.tiers.device[block].clone() for block in blocks]
        for slot, block in zip(slots, blocks, strict=True):
            slot.num_leases += 1
            self.device_leases[block] += 1
        self.begin(Expected(move, contents, corrupt, before))

    def begin(self, expected: Expected) -> None:
        known = set(self.link.open_handles())
        self.expected[expected.move.transfer_id] = expected
        self.tiers.offload.begin([expected.move])
        expected.handles = [handle for handle in self.link.open_handles() if handle not in known]

    @rule(seconds=st.sampled_from([1e-5, 1e-4, 1e-3, 1e-2]))
    def pass_time(self, seconds: float) -> None:
        self.link.advance(seconds)

    @precondition(lambda self: self.link.open_handles())
    @rule(data=st.data(), is_twice=st.booleans())
    def fail_copy(self, data: st.DataObject, is_twice: bool) -> None:
        handle = data.draw(st.sampled_from(self.link.open_handles()))
        if is_twice:
            self.link.duplicate(handle)
        else:
            self.link.fail(handle, RuntimeError("a fault"))
            for expected in self.expected.values():
                expected.is_failed |= handle in expected.handles

    @precondition(lambda self: self.expected)
    @rule(part=st.integers(0, NUM_PARTS - 1), data=st.data())
    def wait_part(self, part: int, data: st.DataObject) -> None:
        loads = [each for each in self.expected.values() if each.move.kind is LOAD]
        self.tiers.offload.wait_part([each.move.transfer_id for each in loads], part)
        end = (120, 240, 300)[part]
        for each in loads:
            if not each.is_failed:
                for block, content, is_corrupt in zip(
                    each.move.device_blocks, each.contents, each.corrupt, strict=True
                ):
                    assert is_corrupt or torch.equal(self.tiers.device[block, :end], content[:end])
        self.collect()

    @rule(block=st.integers(0, NUM_DEVICE_BLOCKS - 1), number=st.integers(0, 1000))
    def compute(self, block: int, number: int) -> None:
        """The device writes what nobody has leased."""
        if not self.device_leases[block]:
            self.tiers.device[block] = block_of(number)

    @rule(slot=st.integers(0, NUM_SLOTS - 1), byte=st.integers(0, BLOCK_BYTES - 1), bit=st.integers(0, 7))
    def damage_slot(self, slot: int, byte: int, bit: int) -> None:
        state = self.slots[slot]
        if not state.num_leases and not state.is_damaged:
            self.tiers.slot(slot)[byte] ^= 1 << bit
            state.is_damaged = True

    @rule(number=st.integers(0, NUM_NAMES - 1), slot=st.integers(0, NUM_SLOTS - 1))
    def write(self, number: int, slot: int) -> None:
        state = self.slots[slot]
        if state.is_written:
            return
        outcome = self.one(WRITE, number, (slot,))
        if state.content is None or state.is_damaged:
            assert outcome is CORRUPT
        elif number not in self.on_disk and len(self.on_disk) >= NUM_FILES:
            assert outcome is FULL
        elif "write" in self.files.errors:
            assert outcome is ERRORS[self.files.errors["write"]]
        else:
            assert outcome is DONE
            self.on_disk[number] = state.content

    @rule(number=st.integers(0, NUM_NAMES - 1), slot=st.integers(0, NUM_SLOTS - 1))
    def read(self, number: int, slot: int) -> None:
        if self.slots[slot].num_leases:
            return
        outcome = self.one(READ, number, (slot,))
        self.slots[slot] = Slot()
        if "read" in self.files.errors:
            assert outcome is FAILED
        elif number not in self.on_disk:
            assert outcome is ABSENT
        elif self.on_disk[number] is None:
            assert outcome is CORRUPT
        else:
            assert outcome is DONE
            assert torch.equal(self.tiers.slot(slot), self.on_disk[number])
            self.slots[slot] = Slot(self.on_disk[number])

    @rule(number=st.integers(0, NUM_NAMES - 1))
    def delete(self, number: int) -> None:
        outcome = self.one(DELETE, number)
        if "remove" in self.files.errors:
            assert outcome is FAILED
        else:
            assert outcome is DONE
            self.on_disk.pop(number, None)

    @rule(number=st.integers(0, NUM_NAMES - 1))
    def touch(self, number: int) -> None:
        """It changes no content, and a file that is not there is no failure."""
        assert self.one(TOUCH, number) is DONE
        assert block_path(self.disk.directory, key(number)).exists() == (number in self.on_disk)

    @rule(number=st.integers(0, NUM_NAMES - 1), byte=st.integers(0, FILE_BYTES - 1), is_cut=st.booleans())
    def damage_file(self, number: int, byte: int, is_cut: bool) -> None:
        if self.on_disk.get(number) is None:
            return
        path = block_path(self.disk.directory, key(number))
        content = bytearray(path.read_bytes())
        content[byte] ^= 0x40
        path.write_bytes(content[:byte] if is_cut else content)
        self.on_disk[number] = None

    @rule(call=st.sampled_from(["read", "write", "remove", "mark_used"]), number=st.sampled_from([0, *ERRORS]))
    def break_disk(self, call: str, number: int) -> None:
        self.files.errors.pop(call, None)
        if number:
            self.files.errors[call] = number

    @rule()
    def restart(self) -> None:
        """Another server: what is whole by size is there, the rest is not."""
        if self.expected:
            return
        self.files.errors = {}
        self.tiers.offload.close()
        whole = {
            number
            for number in self.on_disk
            if block_path(self.disk.directory, key(number)).stat().st_size == FILE_BYTES
        }
        self.disk = DiskTier(Path(self.folder.name), FINGERPRINT, BLOCK_BYTES, NUM_FILES * DISK_BYTES, self.files)
        assert set(self.disk.hashes) == {key(number) for number in whole}
        self.on_disk = {number: self.on_disk[number] for number in whole}
        self.tiers = make_tiers(
            self.link, num_load_parts=NUM_PARTS, check_share=1.0, disk=self.disk, lanes=InlineLanes()
        )
        self.slots = [Slot() for _ in range(NUM_SLOTS)]
        self.disk.check()

    @rule()
    def take_results(self) -> None:
        self.collect()

    def collect(self) -> list[tuple[int, tuple[MoveOutcome, ...]]]:
        results = [(each.transfer_id, each.outcomes) for each in self.tiers.offload.collect()]
        for transfer_id, outcomes in results:
            self.num_results += 1
            expected = self.expected.pop(transfer_id, None)
            if expected is not None:
                self.end(expected, outcomes)
        return results

    def end(self, expected: Expected, outcomes: tuple[MoveOutcome, ...]) -> None:
        move = expected.move
        for index, outcome in enumerate(outcomes):
            block, slot = move.device_blocks[index], self.slots[move.host_slots[index]]
            self.device_leases[block] -= 1
            slot.num_leases -= 1
            slot.is_written = False
            if expected.corrupt[index]:
                assert outcome is CORRUPT
                assert torch.equal(self.tiers.device[block], expected.before[index]), "it was not to move"
            elif expected.is_failed:
                assert outcome is FAILED
            else:
                assert outcome is DONE
                target = self.tiers.slot(move.host_slots[index]) if move.kind is STORE else self.tiers.device[block]
                assert torch.equal(target, expected.contents[index])
                if move.kind is STORE:
                    slot.content = expected.contents[index]

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "tiers"):
            self.tiers.offload.check()
            assert self.tiers.offload.stats().num_open <= len(self.expected)

    def teardown(self) -> None:
        if not hasattr(self, "tiers"):
            return
        self.link.advance_to_idle()
        self.collect()
        assert not self.expected and self.num_results == self.num_moves, "a move has not ended"
        assert not any(self.device_leases) and not any(slot.num_leases for slot in self.slots)
        self.tiers.offload.close()
        self.folder.cleanup()


KVOffloadMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestKVOffload = KVOffloadMachine.TestCase
