"""The directory of host and disk blocks in the plainest way: dicts, lists, and a search for every answer."""

from __future__ import annotations

import dataclasses

from scheduler.kv_transfer import BlockOutcome, TierConfig, TransferKind

DONE, FAILED, CORRUPT, ABSENT, FULL = (
    BlockOutcome.DONE,
    BlockOutcome.FAILED,
    BlockOutcome.CORRUPT,
    BlockOutcome.ABSENT,
    BlockOutcome.FULL,
)


@dataclasses.dataclass
class HostBlock:
    priority: int
    state: str  # "arriving", "held" or "idle"
    kind: TransferKind | None = None  # of what arrives
    loads: int = 0
    is_written: bool = False
    is_lost: bool = False
    num_uses: int = 0
    used_at: tuple[int, int] = (0, 0)  # evictions until then, and a serial number
    queued: tuple[tuple[int, int], int] | None = None  # line, and a serial number


@dataclasses.dataclass
class DiskBlock:
    priority: int
    state: str  # "writing", "idle", "reading", "due", "stuck" or "deleting"
    num_failures: int = 0
    rests_until: float = 0.0
    used_at: tuple[int, int] = (0, 0)


@dataclasses.dataclass
class Breaker:
    """The history of what ended while the tier was on, and the trial."""

    ends: list[BlockOutcome] = dataclasses.field(default_factory=list)
    is_on: bool = True
    off_s: float = 30.0
    off_until: float = 0.0
    trial: object = None

    def may_begin(self, now):
        return self.is_on or (self.trial is None and now >= self.off_until)

    def begin(self, key):
        if not self.is_on:
            self.trial = key

    def end(self, key, outcome, now):
        if self.is_on:
            self.ends.append(outcome)
            telling = [end for end in self.ends if end in (DONE, FAILED)]
            if telling[-8:] == [FAILED] * 8:
                self.is_on, self.off_s, self.off_until = False, 30.0, now + 30.0
        elif self.trial == key:
            self.trial = None
            if outcome is DONE:
                self.is_on, self.ends = True, []
            elif outcome is FAILED:
                self.off_s = min(600.0, 2 * self.off_s)
                self.off_until = now + self.off_s


class TierModel:
    """Same calls and answers as the directory's, but for slots: whether there is one."""

    def __init__(self, config: TierConfig) -> None:
        self.num_slots, self.capacity = config.num_host_slots, config.num_disk_blocks
        self.host_decay = max(1, 2 * self.num_slots)
        self.disk_decay = max(1, 4 * self.capacity)
        self.has_disk = self.capacity > 0
        self.host: dict[bytes, HostBlock] = {}
        self.disk: dict[bytes, DiskBlock] = {}
        self.due: list[bytes] = []
        self.now = 0.0
        self.serial = self.num_host_evictions = self.num_disk_evictions = self.num_vanished = 0
        self.num_disk_counted = 0  # of those, the ones for others
        self.host_breaker, self.disk_breaker = Breaker(), Breaker()
        self.room, self.room_trial, self.retry_at = "open", None, 0.0
        self.wished, self.full_at, self.growth_s = self.capacity, 0.0, 60.0
        self.grown_from, self.has_evicted = None, False
        self.num_grown = self.num_grown_in_vain = 0
        for block_hash in config.disk_hashes:
            self.disk[block_hash] = DiskBlock(1, "idle", used_at=self.disk_time())
        while len(self.idle_on_disk()) > self.capacity:
            self.evict_from_disk()

    def observe(self, now):
        self.now = now
        stuck = [h for h, entry in self.disk.items() if entry.state == "stuck" and now >= entry.rests_until]
        for block_hash in sorted(stuck, key=lambda h: self.disk[h].used_at[1]):
            self.disk[block_hash].state = "due"
            self.due.append(block_hash)

    def next_serial(self):
        self.serial += 1
        return self.serial

    def host_time(self):
        return (self.num_host_evictions, self.next_serial())

    def disk_time(self):
        return (self.num_disk_evictions, self.next_serial())

    def is_on_disk(self, block_hash):
        return block_hash in self.disk and self.disk[block_hash].state in ("idle", "reading")

    def idle_on_disk(self):
        return [h for h, entry in self.disk.items() if entry.state == "idle"]

    @property
    def readable(self):
        return [h for h, b in self.host.items() if b.state != "arriving" and not b.is_lost]

    @property
    def queue(self):
        return [h for h, b in self.host.items() if b.queued]

    @property
    def is_writable(self):
        return self.room != "closed" and self.capacity > 0

    def presence(self, block_hash):
        if not self.host_breaker.is_on:
            return "absent"
        if block_hash in self.host:
            if block_hash in self.readable:
                return "host"
            return "coming" if self.host[block_hash].kind is TransferKind.READ else "absent"
        entry = self.disk.get(block_hash)
        if entry and entry.state == "idle" and self.now >= entry.rests_until and self.disk_breaker.may_begin(self.now):
            return "disk"
        return "absent"

    def touch(self, block_hashes, priority):
        for block_hash in block_hashes[::-1]:
            if block_hash in self.disk:
                entry = self.disk[block_hash]
                entry.priority = max(entry.priority, priority)
                if entry.state == "idle":
                    entry.used_at = self.disk_time()
            if block_hash in self.host:
                block = self.host[block_hash]
                block.priority = max(block.priority, priority)
                block.num_uses += 1
                block.used_at = self.host_time()
                self.enqueue(block_hash)

    def enqueue(self, block_hash):
        if block_hash in self.readable and self.is_writable and block_hash not in self.disk:
            block = self.host[block_hash]
            line = (block.priority, min(block.num_uses, 3))
            if block.queued is None or block.queued[0] != line:
                block.queued = (line, self.next_serial())

    def make_slot(self):
        if len(self.host) < self.num_slots:
            return True
        idle = [h for h, b in self.host.items() if b.state == "idle"]
        if not idle:
            return False

        def worth(block_hash):
            block = self.host[block_hash]
            rank = 2 * block.priority + (not self.is_on_disk(block_hash))
            return (block.used_at[0] + rank * self.host_decay, rank, block.used_at[1])

        victim = min(idle, key=worth)
        self.num_vanished += not self.is_on_disk(victim)
        del self.host[victim]
        self.num_host_evictions += 1
        return True

    def evict_from_disk(self):
        idle = self.idle_on_disk()
        if not idle:
            return False

        def worth(block_hash):
            entry = self.disk[block_hash]
            return (entry.used_at[0] + entry.priority * self.disk_decay, entry.priority, entry.used_at[1])

        victim = min(idle, key=worth)
        self.num_disk_evictions += 1
        self.condemn(victim)
        if victim in self.host:
            self.host[victim].used_at = self.host_time()
        return True

    def condemn(self, block_hash):
        self.disk[block_hash].state = "due"
        self.due.append(block_hash)

    def begin_store(self, block_hash, priority):
        if block_hash in self.host or not self.host_breaker.may_begin(self.now) or not self.make_slot():
            return False
        self.host_breaker.begin(("store", block_hash))
        self.host[block_hash] = HostBlock(priority, "arriving", TransferKind.STORE)
        return True

    def arrive(self, block_hash):
        block = self.host[block_hash]
        block.state, block.kind, block.used_at = "idle", None, self.host_time()

    def end_store(self, block_hash, outcome):
        self.host_breaker.end(("store", block_hash), outcome, self.now)
        if outcome is DONE:
            self.arrive(block_hash)
            self.enqueue(block_hash)
        else:
            del self.host[block_hash]

    def begin_load(self, block_hash):
        self.host[block_hash].loads += 1
        self.host[block_hash].state = "held"

    def end_load(self, block_hash, outcome):
        self.host_breaker.end(("load", block_hash), outcome, self.now)
        block = self.host[block_hash]
        block.loads -= 1
        if outcome is not DONE:
            block.is_lost, block.queued = True, None
        self.let_go(block_hash)

    def let_go(self, block_hash):
        block = self.host[block_hash]
        if not block.loads and not block.is_written:
            block.state, block.used_at = "idle", self.host_time()
            if block.is_lost:
                del self.host[block_hash]

    def begin_read(self, block_hash, priority):
        if self.presence(block_hash) != "disk" or not self.make_slot():
            return False
        self.disk_breaker.begin(("read", block_hash))
        entry = self.disk[block_hash]
        entry.priority = max(entry.priority, priority)
        entry.state = "reading"
        self.host[block_hash] = HostBlock(entry.priority, "arriving", TransferKind.READ)
        return True

    def end_read(self, block_hash, outcome):
        self.disk_breaker.end(("read", block_hash), outcome, self.now)
        entry = self.disk[block_hash]
        if outcome is DONE:
            entry.state, entry.num_failures, entry.used_at = "idle", 0, self.disk_time()
            self.arrive(block_hash)
            return
        del self.host[block_hash]
        if outcome is ABSENT:
            del self.disk[block_hash]
        elif outcome is CORRUPT or entry.num_failures == 1:
            self.condemn(block_hash)
        else:
            entry.state, entry.num_failures, entry.used_at = "idle", 1, self.disk_time()
            entry.rests_until = self.now + 30.0

    def num_going(self):
        return sum(entry.state in ("due", "deleting") for entry in self.disk.values())

    def next_writes(self, max_blocks):
        if not (self.is_writable and self.host_breaker.is_on and self.disk_breaker.may_begin(self.now)):
            return []
        wanted = min(max_blocks, len(self.queue))
        if not self.disk_breaker.is_on:
            wanted = min(wanted, 1)
        if self.room == "trying" or (self.room == "paused" and (self.num_going() or self.now < self.retry_at)):
            wanted = 0
        elif self.room == "paused":
            wanted = min(wanted, 1)
        if self.capacity - len(self.disk) + self.num_going() < wanted:
            self.grow()
        while self.capacity - len(self.disk) + self.num_going() < wanted and self.evict_from_disk():
            self.num_disk_counted += 1
        begun = []
        for _ in range(min(wanted, max(0, self.capacity - len(self.disk)))):
            block_hash = min(self.queue, key=lambda h: ([-n for n in self.host[h].queued[0]], self.host[h].queued[1]))
            block = self.host[block_hash]
            block.queued, block.is_written, block.state = None, True, "held"
            self.disk_breaker.begin(("write", block_hash))
            self.disk[block_hash] = DiskBlock(block.priority, "writing")
            if self.room == "paused":
                self.room, self.room_trial = "trying", block_hash
            begun.append(block_hash)
        return begun

    def end_write(self, block_hash, outcome):
        self.disk_breaker.end(("write", block_hash), outcome, self.now)
        block = self.host[block_hash]
        block.is_lost |= outcome is CORRUPT
        if outcome is not DONE:
            del self.disk[block_hash]
        elif block.is_lost:
            self.condemn(block_hash)
        else:
            self.disk[block_hash].state, self.disk[block_hash].used_at = "idle", self.disk_time()
        if outcome is FULL:
            self.fill(block_hash)
        elif self.room_trial == block_hash:
            self.room, self.room_trial = ("open" if outcome is DONE else "paused"), None
        if block.is_lost:
            block.queued = None
        block.is_written = False
        self.let_go(block_hash)
        if outcome is FULL:
            self.enqueue(block_hash)

    def fill(self, block_hash):
        kept = sum(entry.state in ("idle", "reading") for entry in self.disk.values())
        if self.room == "trying" and self.room_trial == block_hash and self.has_evicted:
            self.room, self.room_trial = "closed", None
        elif self.room == "open" or self.room_trial == block_hash:
            self.room, self.room_trial = "paused", None
            self.retry_at, self.full_at = self.now + 10.0, self.now
            if self.grown_from is None:
                self.has_evicted = True
                self.capacity = min(self.capacity, max(1, kept))
                for _ in range((kept + 15) // 16):
                    self.num_disk_counted += self.evict_from_disk()
            else:
                self.num_grown_in_vain += 1
                self.capacity = min(self.capacity, max(kept, self.grown_from))
                self.growth_s = min(3600.0, self.growth_s * 2)
                self.grown_from, self.has_evicted = None, False

    def grow(self):
        if self.room == "open" and self.grown_from is not None:
            self.grown_from, self.growth_s = None, 60.0
        if self.room == "open" and self.capacity < self.wished and self.now >= self.full_at + self.growth_s:
            self.grown_from = self.capacity
            self.capacity = min(self.wished, self.capacity + (self.wished + 15) // 16)
            self.num_grown += 1

    def take_deletions(self):
        if not self.disk_breaker.may_begin(self.now):
            return []
        taken, self.due = (self.due[:64], self.due[64:]) if self.disk_breaker.is_on else (self.due[:1], self.due[1:])
        for block_hash in taken:
            self.disk[block_hash].state = "deleting"
            self.disk_breaker.begin(("delete", block_hash))
        return taken

    def end_delete(self, block_hash, outcome):
        self.disk_breaker.end(("delete", block_hash), outcome, self.now)
        entry = self.disk[block_hash]
        if outcome in (DONE, ABSENT):
            del self.disk[block_hash]
        else:
            entry.state, entry.rests_until, entry.used_at = "stuck", self.now + 30.0, self.disk_time()
