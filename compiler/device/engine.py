"""What runs beside the threads of a block: tensor copies, bulk stores, and wgmma's asynchronous products.

A tensor copy's bytes arrive as late as possible, when no thread can go on without them; from its start they count as
under way, so that a thread that reads them without waiting, or early reuse of a buffer, is seen."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirc.device.bulk_copies import Sent, Store, end_write, note_read
from mlirc.device.machine import Machine, State
from mlirc.device.mbarriers import Mbarriers
from mlirc.device.memory import Buffer


@dataclass
class Reading:
    """The shared memory bytes that a wgmma reads until its group is waited for."""

    group: int
    thread: int  # first of the warpgroup
    buffer: Buffer
    cells: np.ndarray
    result: np.ndarray
    block: int = 0
    op: Any = None


@dataclass
class Engine:
    """The asynchronous side of a batch of blocks."""

    machine: Machine
    barriers: Mbarriers = field(init=False)
    transfers: deque[Callable[[], None]] = field(default_factory=deque)
    begun: list[tuple] = field(default_factory=list)  # by the operation under way, see bulk_copies.note_transfers
    readings: list[Reading] = field(default_factory=list)
    groups: dict[tuple[int, int], int] = field(default_factory=dict)  # (block, first thread) -> groups committed
    fenced: dict[tuple[int, int], int] = field(default_factory=dict)  # when each warpgroup last executed wgmma.fence,
    # unless it has waited since
    looked: dict[int, int] = field(default_factory=dict)  # when threads last accessed an accumulator, by identity
    time: int = 0  # counts fences and accesses to accumulators
    stores: list[Store] = field(default_factory=list)  # bulk stores under way
    sent: dict[tuple, Sent] = field(default_factory=dict)  # copies into shared memory, see exits.py
    bulk: dict[tuple[int, int], int] = field(default_factory=dict)  # (block, thread) -> bulk groups committed
    results: weakref.WeakValueDictionary = field(default_factory=weakref.WeakValueDictionary)  # of wgmmas, by identity
    fragments: dict[tuple[int, int], list] = field(default_factory=dict)  # (block, first thread) -> registers of A that
    # wgmmas under way read: (group, {register: value})
    unfinished: dict[int, np.ndarray] = field(default_factory=dict)  # accumulators by identity
    told: set[int] = field(default_factory=set)  # those of which a read has been reported: one of each is enough

    def __post_init__(self) -> None:
        self.barriers = Mbarriers(self.machine)

    # -- copies

    def start(self, transfer: Callable[[], None]) -> None:
        self.transfers.append(transfer)

    def advance(self) -> bool:
        """Ends the oldest copy; False if there is none."""
        if not self.transfers:
            return False
        self.transfers.popleft()()
        return True

    # -- wgmma

    def fence(self, b: int, t: int) -> None:
        self.time += 1
        self.fenced[b, t] = self.time

    def check_fence(self, b: int, t: int, accumulator: np.ndarray, late: bool, op) -> None:
        """An accumulator that no wgmma made (`late`: which was made behind the last fence), or that threads have since
        accessed, needs a wgmma.fence behind that (PTX ISA, "wgmma.fence")."""
        fence, made = self.fenced.get((b, t), 0), id(accumulator) in self.results
        if (not fence or late) if not made else fence < self.looked.get(id(accumulator), 0):
            what = "accumulator that threads have accessed" if made else "accumulator that no wgmma made"
            message = f"uses an {what}, with no wgmma.fence behind that"
            self.machine.complain("missing wgmma fence", self.machine.one(b, t), message, op)

    def reads(self, b: int, t: int, buffer: Buffer, cells: np.ndarray, result: np.ndarray, op) -> None:
        """Notes that a warpgroup's wgmma reads these bytes of the storage until it is waited for."""
        buffer.mark("reading").reading[cells] += 1  # type: ignore[index]
        self.readings.append(Reading(self.groups.get((b, t), 0), t, buffer, cells, result, b, op))
        self.unfinished[id(result)] = result
        self.told.discard(id(result))

    def commit(self, b: int, t: int) -> None:
        self.groups[b, t] = self.groups.get((b, t), 0) + 1

    def wait(self, b: int, t: int, pending: int) -> None:
        """Ends all but the latest `pending` groups of a warpgroup."""
        done = self.groups.get((b, t), 0) - pending
        self.fenced.pop((b, t), None)  # registers may change now
        clocks = self.machine.clocks
        if clocks is not None:  # the warpgroup has seen its own reads
            column, row = clocks.group(b, t), clocks.row(b, t)
            mine = clocks.now[clocks.unit(b), row : row + 4, column]
            np.maximum(mine, done, out=mine)
        if (b, t) in self.fragments:
            self.fragments[b, t] = [x for x in self.fragments[b, t] if x[0] >= done]
        ended = {id(r): r for r in self.readings if (r.block, r.thread) == (b, t) and r.group < done}
        self.readings = [r for r in self.readings if id(r) not in ended]
        left = {id(r.result) for r in self.readings}
        for r in ended.values():
            r.buffer.reading[r.cells] -= 1  # type: ignore[index]
            if id(r.result) not in left:
                self.unfinished.pop(id(r.result), None)

    # -- bulk stores: they read shared memory until their group is waited for

    def store(self, store: Store) -> None:
        store.buffer.mark("reading").reading[store.cells] += 1  # type: ignore[index]
        self.stores.append(store)

    def commit_bulk(self, s: State) -> None:
        for b, t in np.argwhere(self.machine.everyone(s.mask)):
            self.bulk[int(b), int(t)] = self.bulk.get((int(b), int(t)), 0) + 1

    def wait_bulk(self, s: State, pending: int, read: bool) -> None:
        """All but the latest `pending` bulk groups of every active thread have ended (`read`: their reads have)."""
        m, kept = self.machine, []
        active = m.everyone(s.mask)
        for store in self.stores:
            b, t = store.who
            if not active[b, t] or store.group >= self.bulk.get((b, t), 0) - pending:
                kept.append(store)
                continue
            if store.reading:
                store.reading = False
                store.buffer.reading[store.cells] -= 1  # type: ignore[index]
                if m.clocks is not None and m.races is not None:  # the reads end here
                    note_read(m, store.buffer, store.cells, store.who, store.op)
            if read:
                kept.append(store)
            else:
                end_write(m, store)
        self.stores = kept

    def end_stores(self) -> None:
        """The launch goes on without the blocks: what they have stored is written then."""
        for store in self.stores:
            end_write(self.machine, store)
        self.stores = []

    def check_overwrite(self, b: int, t: int, buffer: Buffer, address: np.ndarray, op) -> None:
        """Complains if a wgmma still reads what is about to be written: bytes of the storage."""
        if buffer.reading is not None and (busy := buffer.reading[address] > 0).any():
            message = f"overwrites {self.reader(buffer, int(address[busy][0]))}"
            self.machine.complain("race", self.machine.one(b, t), message, op)

    def reader(self, buffer: Buffer, byte: int) -> str:
        """A byte of a buffer's storage, and the wgmma or bulk store under way that reads it, in words."""
        what = f"byte {buffer.within(byte)} of {buffer.name}, which"
        readers: list[Any] = [*self.readings, *(x for x in self.stores if x.reading)]
        for x in readers:
            if x.buffer is buffer and (x.cells == byte).any():
                return f"{what} {x.op.name} at {self.machine.report.place(x.op)} still reads"
        return f"{what} a copy under way still reads"

    def check_accumulator(self, s: State, value: np.ndarray, op) -> None:
        if id(value) in self.results:
            self.time += 1
            self.looked[id(value)] = self.time
        if id(value) in self.unfinished and id(value) not in self.told:
            self.told.add(id(value))
            everyone = s.m.everyone(s.mask)
            by = next((r.op for r in self.readings if r.result is value), None)
            where = "a wgmma" if by is None else f"the wgmma at {self.machine.report.place(by)}"
            message = f"reads the accumulator of {where} before the wait for its group"
            self.machine.complain("unfinished wgmma", everyone, message, op)


def engine_of(s: State) -> Engine:
    if s.m.engine is None:
        s.m.engine = Engine(s.m)
    return s.m.engine
