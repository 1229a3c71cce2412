"""What happens before what, in kernels that order their warps by mbarriers, by named barriers of part of a block, or by
barriers of a cluster: a vector clock for every warp.

Warp w's clock says for every agent up to which of its epochs w has seen everything. Agents are the warps of a cluster
(an epoch ends when the warp arrives somewhere), the wgmmas of each warpgroup (an epoch is a committed group: waiting
for the group is seeing it) and the mbarriers that tensor copies signal (an epoch is a phase: passing the wait is seeing
the bytes). An arrival leaves the warp's clock at the barrier; who waits for the phase takes over what was left there
until the phase ended. Every granule of shared memory knows its last writer and each agent's last read, with their
epochs: an access whose warp has not seen the other one's epoch is a race, in whatever order the two ran. (Flanagan and
Freund, "FastTrack", PLDI 2009, with warps for threads.)

Lanes of one warp are one agent here: races between them are found by the log (races.py), and lanes.py sees to those
that arrive or wait by themselves. A wait for wgmmas stands for the whole warpgroup, as kernels use them. Shared memory
is watched here; what is known of global memory (global_order.py) is handed on with it, in the columns behind those of
this file."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlirc.device.memory import Buffer
from mlirc.device.order.async_reads import AsyncReads
from mlirc.device.order.lanes import Lanes
from mlirc.device.order.lives import Lives
from mlirc.device.order.proxies import Proxies
from mlirc.mlir import ir

_MBARRIERS = 64  # columns for the mbarriers of a block; more share them, which can hide a race but never invents one


class Table:
    """Who accessed the granules of one buffer: the last writer, its epoch and operation, and every agent's last
    read. As long as all units have done the same, which `alike` says, only the first one's part is kept."""

    def __init__(self, buffer: Buffer, granule: int, size: int, units: int, readers: int):
        self.cells, self.block, self.units = len(buffer.data) // granule, buffer.stride // granule, units
        self.part = self.block * size  # granules of a unit
        self.alike = units > 1
        kept = self.part if self.alike else self.cells
        self.writer = np.full(kept, -1, np.int16)
        self.epoch = np.zeros(kept, np.int32)
        self.op = np.zeros(kept, np.int16)
        blocks = -(-kept // self.block)
        self.latest = np.zeros((readers, blocks), np.int32)  # the epoch of each agent's last read of a block's memory
        self.places = np.full((readers, blocks), -1, np.int32)  # the row of `read` for it; -1: it never read there
        self.read = np.zeros((self.places.size, self.block), np.int32)  # likewise, of each granule; few rows are used
        self.used = 0  # rows of `read`

    def at(self, cells: np.ndarray) -> np.ndarray:
        """Where granules of the buffer's storage are kept."""
        return cells % self.part if self.alike else cells

    def divide(self) -> None:
        """From here on units differ."""
        if not self.alike:
            return
        self.alike = False
        for name in ("writer", "epoch", "op"):
            setattr(self, name, np.resize(getattr(self, name), self.cells))
        blocks = -(-self.cells // self.block)
        spare = ((0, 0), (0, blocks - self.units * self.latest.shape[1]))
        self.latest = np.pad(np.tile(self.latest, self.units), spare)
        number = np.repeat(np.arange(self.units), self.places.shape[1])
        places = np.tile(self.places, self.units)
        self.places = np.pad(np.where(places < 0, -1, places + number * self.used), spare, constant_values=-1)
        read = np.zeros((self.places.size, self.block), np.int32)
        read[: self.units * self.used] = np.tile(self.read[: self.used], (self.units, 1))
        self.read, self.used = read, self.units * self.used

    def last_read(self, column, cells: np.ndarray) -> np.ndarray:
        """The epochs of agents' last reads of granules, as they are kept."""
        if not self.used:
            return np.zeros(cells.shape, np.int32)
        place = self.places[column, cells // self.block]
        return np.where(place < 0, 0, self.read[place, cells % self.block])

    def note_read(self, cells: np.ndarray, column, epoch) -> None:
        """A read of granules [n, span], as they are kept, by agents (columns, epochs [n or 1, 1]); each row is in the
        shared memory of one block."""
        block = cells[:, :1] // self.block
        self.latest[column, block] = epoch
        place = self.places[column, block]
        if (place < 0).any():
            self._make_room(*np.broadcast_arrays(column, block))
            place = self.places[column, block]
        self.read[place, cells % self.block] = epoch

    def _make_room(self, column: np.ndarray, block: np.ndarray) -> None:
        """Agents read for the first time in the memory of some blocks (pairs)."""
        for c, b in np.unique(np.stack([column.ravel(), block.ravel()], axis=1), axis=0).tolist():
            if self.places[c, b] >= 0:
                continue
            self.places[c, b] = self.used
            self.used += 1


class Clocks:
    """The clocks of a batch of blocks. A unit is a cluster, or a block where there are none; a row is a warp of it."""

    def __init__(self, machine: Any):
        self.machine = m = machine
        self.size = m.cluster_size
        self.warps = -(-m.nt // 32)
        self.rows = self.size * self.warps
        self.groups = self.size * -(-self.warps // 4)
        self.started = self.rows + self.groups + self.size * _MBARRIERS  # columns: 1 where a block has started
        self.fenced_inits = self.started + self.size  # columns: how often a block has fenced mbarriers' initializations
        self.proxies = Proxies(self, self.fenced_inits + self.size)
        self.local = self.fenced_inits + self.size + self.size * self.rows
        self.columns = self.local + (0 if m.order is None else m.order.columns)
        self.now = np.zeros((m.nb // self.size, self.rows, self.local), np.int32)
        own = np.arange(self.rows)
        self.now[:, own, own] = 1
        self.now[:, own, self.started + own // self.warps] = 1
        self.tables: dict[int, Table] = {}
        self.ops: list[Any] = []
        self.numbers: dict[int, int] = {}  # of operations, by identity
        self.lanes = Lanes(self)
        self.async_reads = AsyncReads(self)
        self.lives = Lives(self)

    # -- who is who

    def unit(self, b):
        """The unit of a block of the batch (a number or an array)."""
        return b // self.size

    def row(self, b, t):
        """The row of a thread within its unit."""
        return b % self.size * self.warps + t // 32

    def group(self, b: int, t: int) -> int:
        """The column of a warpgroup's wgmmas."""
        return self.rows + b % self.size * -(-self.warps // 4) + t // 128

    def column(self, number: int) -> int:
        """The column of a unit's n-th mbarrier."""
        return self.rows + self.groups + number % (self.size * _MBARRIERS)

    def active(self, mask) -> list[tuple[int, int]]:
        """(block, row) of every warp with an active thread."""
        m = self.machine
        full = m.everyone(mask)
        padded = np.zeros((m.nb, self.warps * 32), bool)
        padded[:, : m.nt] = full
        found = padded.reshape(m.nb, self.warps, 32).any(axis=2)
        return [(int(b), int(b % self.size * self.warps + w)) for b, w in np.argwhere(found)]

    # -- synchronization

    def seen(self, b: int, row: int) -> np.ndarray:
        """A warp's clock."""
        return self.now[self.unit(b), row]

    def sees(self, b: int, t: int, row: int, epoch: int) -> bool:
        """Whether a thread knows of an epoch of a warp of its unit (or of another column)."""
        w = t // 32
        if self.now[self.unit(b), self.row(b, t)][row] >= epoch:
            return True
        more = self.lanes.more(b, w, np.arange(32) == t % 32)
        return more is not None and bool(more[row] >= epoch)

    def block_knows(self, b: int, column: int, epoch: int) -> bool:
        """Whether some thread of a block knows of an epoch."""
        first = b % self.size * self.warps
        rows = slice(first, first + self.warps)
        known = self.lanes.known
        return bool(
            (self.now[self.unit(b), rows, column] >= epoch).any()
            or (known is not None and (known[self.unit(b), rows, column] >= epoch).any())
        )

    def release(self, b: int, row: int, into: np.ndarray, lanes: np.ndarray | None = None) -> None:
        """Leaves a warp's clock at a barrier, and begins its next epoch; `lanes` (bool [32]): some of them do."""
        mine, w = self.now[self.unit(b), row], row % self.warps
        if lanes is not None:
            self.lanes.hold_back(b, w, lanes)
        here = into[: self.local]
        np.maximum(here, mine, out=here)
        more = self.lanes.more(b, w, lanes)
        if more is not None:
            np.maximum(here, more, out=here)
        self.lanes.syncs.release(b, w, lanes, int(mine[row]))
        mine[row] += 1
        if self.machine.order is not None:
            self.machine.order.leave(b, w, into[self.local :], lanes)

    def acquire(self, b: int, row: int, from_: np.ndarray, lanes: np.ndarray | None = None) -> None:
        """Takes over what was left at a barrier; `lanes` (bool [32]): some lanes of the warp do."""
        self.lanes.syncs.acquire(b, row % self.warps, lanes, int(from_[row]))
        if lanes is None:
            mine = self.now[self.unit(b), row]
            np.maximum(mine, from_[: self.local], out=mine)
        else:
            self.lanes.learn(b, row % self.warps, lanes, from_[: self.local])
        if self.machine.order is not None:
            self.machine.order.take(b, row % self.warps, from_[self.local :], lanes)

    def publish(self, b: int, t: int) -> np.ndarray:
        """A thread releases: its clock, of shared memory only; its warp's next epoch begins."""
        row, alone = self.row(b, t), np.arange(32) == t % 32
        mine = self.now[self.unit(b), row]
        self.lanes.hold_back(b, t // 32, alone)
        left, more = mine.copy(), self.lanes.more(b, t // 32, alone)
        self.lanes.syncs.release(b, t // 32, alone, int(mine[row]))
        mine[row] += 1
        return left if more is None else np.maximum(left, more)

    def learn(self, b: int, t: int, from_: np.ndarray) -> None:
        """A thread acquires what was published in its block or cluster."""
        alone = np.arange(32) == t % 32
        self.lanes.syncs.acquire(b, t // 32, alone, int(from_[self.row(b, t)]))
        self.lanes.learn(b, t // 32, alone, from_)

    def meet(self, pairs: list[tuple[int, int]], cluster: bool = False) -> None:
        """Warps that all wait for each other, block by block (or cluster by cluster)."""
        parties: dict[int, list[tuple[int, int]]] = {}
        for b, row in pairs:
            parties.setdefault(self.unit(b) if cluster else b, []).append((b, row))
        for party in parties.values():
            total = np.zeros(self.columns, np.int32)
            for b, row in party:
                self.lanes.meet(b, row % self.warps)
                self.release(b, row, total)
            for b, row in party:
                self.acquire(b, row, total)

    # -- accesses

    def table(self, buffer: Buffer) -> Table:
        found = self.tables.get(id(buffer))
        if found is None:
            granule, readers = self.machine.races.granule, self.rows + self.groups
            found = self.tables[id(buffer)] = Table(buffer, granule, self.size, len(self.now), readers)
        return found

    def alike(self) -> bool:
        """Whether all units know the same."""
        return bool((self.now == self.now[0]).all()) and self.lanes.alike()

    def _same_parts(self, table: Table, cells: np.ndarray, unit: np.ndarray, others: tuple, thread: np.ndarray) -> bool:
        """Whether an access is the same one in all units; `others`: rows, columns, epochs."""
        n = table.units
        if len(unit) % n or len(unit) != len(cells) or len(unit) != len(thread):
            return False
        number, threads = np.arange(n)[:, None], self.size * self.machine.nt
        return (
            bool((unit.reshape(n, -1) == number).all())
            and _same_rows(cells.reshape(n, -1) - number * table.part)
            and _same_rows(thread.reshape(n, -1) - number * threads)
            and all(len(x) == 1 or _same_rows(x.reshape(n, -1)) for x in others)
            and self.alike()
        )

    def access(self, buffer: Buffer, first: np.ndarray, span: int, thread: np.ndarray, write: bool, op,
               atomic: bool = False) -> None:  # fmt: skip
        """Checks and notes one access per thread: granules [n] and how many each, threads counted through the batch."""
        thread = np.broadcast_to(thread, len(first))
        b, t = thread // self.machine.nt, thread % self.machine.nt
        row, unit = self.row(b, t), self.unit(b)
        if self.size > 1:
            self.lives.note(first * self.machine.races.granule // buffer.stride, thread, op)
        epoch = self.now[unit, row, row]
        cells = first[:, None] + np.arange(span)
        self.touch(buffer, cells, (unit, row), (row, epoch), write, op, thread, atomic)

    def touch(self, buffer: Buffer, cells: np.ndarray, knower: tuple, agent: tuple, write: bool, op, thread,
              atomic: bool = False) -> None:  # fmt: skip
        """Checks granules [n, span] against what the warps (unit [n], row [n]) have seen, then notes an access to them
        by the agents (column [n], epoch [n]); what is the same for all may be a number."""
        if not len(cells):
            return
        table = self.table(buffer)
        unit, row = (np.reshape(x, (-1, 1)) for x in knower)
        column, epoch = (np.reshape(x, (-1, 1)) for x in agent)
        wgmma = np.ndim(agent[0]) == 0 and self.rows <= int(agent[0]) < self.rows + self.groups
        alone = None if wgmma else np.reshape(thread, -1)  # of whole warps
        times = 1  # that the access is made, for each that is looked at
        if table.alike and self._same_parts(table, cells, unit, (row, column, epoch), np.reshape(thread, -1)):
            times, some = table.units, len(cells) // table.units
            cells, unit, thread = cells[:some], unit[:some], np.reshape(thread, -1)[:some]
            row, column, epoch = (x[:some] if len(x) > 1 else x for x in (row, column, epoch))
            alone = None if wgmma else thread
        else:
            table.divide()
        clash = self._unseen_writes(table, cells, unit, row, alone)
        if atomic and clash.any():  # two atomics do not race
            clash &= np.array([not is_atomic(self.ops[i]) for i in range(len(self.ops))])[table.op[cells]]
        if clash.any():
            self._complain(buffer, table, cells, clash, (thread, times), write, op, {})
        elif write and (late := self._unseen_reads(table, cells, unit, row, alone)):
            clash = np.logical_or.reduce(list(late.values()))
            self._complain(buffer, table, cells, clash, (thread, times), write, op, late)
        if not write and atomic:  # noted nowhere: later atomics do not race with it
            return
        if not write:
            table.note_read(cells, column, epoch)
            return
        table.writer[cells] = column.astype(np.int16)
        table.epoch[cells] = epoch
        table.op[cells] = self._number(op)
        if atomic or column.size == 1:
            return
        again = table.writer[cells] != column
        if again.any():  # several warps in this very operation
            self._complain(buffer, table, cells, again, (thread, times), write, op, {})

    def _unseen_writes(
        self, table: Table, cells: np.ndarray, unit: np.ndarray, row: np.ndarray, thread: np.ndarray | None
    ) -> np.ndarray:
        """Granules [n, span] whose last write warps (unit and row [n or 1, 1]) have not seen."""
        writer = table.writer[cells]
        column = np.maximum(writer, 0)
        known = self.now[unit, row, column]
        if thread is not None:
            known = np.maximum(known, self.lanes.beyond(thread, column))
        return (writer >= 0) & (known < table.epoch[cells])

    def _unseen_reads(
        self, table: Table, cells: np.ndarray, unit: np.ndarray, row: np.ndarray, thread: np.ndarray | None
    ) -> dict[int, np.ndarray]:
        """For each agent's column the granules [n, span] that it has read last without the warps having seen it. What
        it has read of a block is looked at only if a warp has not seen the last of it."""
        unit, row, block = (np.broadcast_to(x, (len(cells), 1))[:, 0] for x in (unit, row, cells[:, :1] // table.block))
        begins = np.append(True, (np.diff(unit) != 0) | (np.diff(row) != 0) | (np.diff(block) != 0))
        first, which = np.flatnonzero(begins), np.cumsum(begins) - 1
        open_ = table.latest[:, block[first]].T > self.now[unit[first], row[first], : len(table.latest)]
        open_[np.arange(len(first)), row[first]] = False
        found = {}
        for column in np.flatnonzero(open_.any(axis=0)).tolist():
            some = np.flatnonzero(open_[which, column])
            seen = self.now[unit[some], row[some], column][:, None]
            if thread is not None:
                who = thread if len(thread) == 1 else thread[some]
                seen = np.maximum(seen, self.lanes.beyond(who, np.array([[column]])))
            late = table.last_read(column, cells[some]) > seen
            if late.any():
                found[column] = np.zeros(cells.shape, bool)
                found[column][some] = late
        return found

    # -- reports

    def _number(self, op) -> int:
        n = self.numbers.get(hash(op))
        if n is None:
            n = self.numbers[hash(op)] = len(self.ops)
            self.ops.append(op)
        return n

    def _name(self, column: int) -> str:
        """An agent in words."""
        if column < self.rows:
            rank = f" of block {column // self.warps} of the cluster" if self.size > 1 else ""
            return f"warp {column % self.warps}{rank}"
        if column < self.rows + self.groups:
            return f"a wgmma of warpgroup {(column - self.rows) % max(1, self.groups // self.size)}"
        return "a tensor copy"

    def _complain(
        self, buffer: Buffer, table: Table, cells, clash, who: tuple, write: bool, op, late: dict[int, np.ndarray]
    ) -> None:
        """`who`: threads, and how often each of their accesses is made; `late`: reads that they overwrite."""
        m, (thread, times) = self.machine, who
        i, j = np.argwhere(clash)[0]
        cell, number = int(cells[i, j]), int(np.broadcast_to(np.reshape(thread, -1), len(cells))[i])
        byte = cell * m.races.granule % buffer.stride
        if late:
            whom = f"{self._name(next(column for column, where in late.items() if where[i, j]))} reads"
        else:
            other = self.ops[table.op[cell]]
            whom = f"{self._name(int(table.writer[cell]))} writes ({other.name} at {m.report.place(other)})"
        what = f"{'writes' if write else 'reads'} byte {byte} of {buffer.name}"
        message = f"{what}, which {whom} with no arrival and wait in between"
        m.complain_of("race", number, message, op, times * int(clash.any(axis=1).sum()))


def _same_rows(x: np.ndarray) -> bool:
    return bool((x == x[0]).all())


def is_atomic(op) -> bool:
    """Whether an operation's accesses are atomic: read-modify-writes, and loads and stores with a memory order, or
    volatile ones."""
    if op.name in ("llvm.load", "llvm.store"):
        return "volatile_" in op.attributes or ir.IntegerAttr(op.attributes["ordering"]).value > 0
    return "atomic" in op.name or op.name == "llvm.cmpxchg"
