"""What happens before what in global memory, across the blocks of a launch: the vector clocks of its threads.

Which accesses of other threads a thread has seen is a row of epochs, one for each thread of the launch. Threads share a
row while they know the same: a warp has one, and a lane that acquires by itself has its own until the warp meets again.
An epoch belongs to a warp, and ends when one of its lanes releases. (Flanagan and Freund, "FastTrack", PLDI 2009.)

Order comes from barriers, and from release and acquire patterns (PTX ISA, "Memory Consistency Model"): a release is an
atomic write with that order, or a relaxed one with a fence in front of it; an acquire is an atomic read with that
order, or a relaxed one with a fence behind it. The releasing thread's row is left at the location, for those whom the
scopes of both sides include; read-modify-writes hand on what was left there, other writes replace it. What a barrier
has told the releasing thread is handed on with it (causality order is transitive)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mlirc.device.memory import Buffer
from mlirc.device.order.launch_order import BLOCK, CLUSTER, DEVICE, Location, Mark, Order
from mlirc.errors import MlircError

MAX_THREADS = 1 << 18  # of a launch whose threads order each other: every release is a row of all of them
MAX_BYTES = 2 << 30  # of the clocks of the machines under way at once
_CONFLICTS = {  # the kinds of earlier accesses, besides plain writes, that an access must come after
    "read": ("atomic write",),
    "write": ("read", "atomic load", "atomic write"),
    "atomic load": (),
    "atomic write": ("read",),
}  # fmt: skip
_VERBS = {"read": "reads", "write": "writes", "atomic load": "atomically reads", "atomic write": "atomically writes"}


def check_watched(kernel: str, rows: int, threads: int) -> None:
    """Raises MlircError if the clocks of so many rows (warps), of so many threads each, would take too much memory."""
    if threads > MAX_THREADS or rows * threads * 4 > MAX_BYTES:
        raise MlircError(
            f"host device: kernel {kernel}: its {threads} threads order each other through global memory, too many to "
            "watch: check it at a smaller shape, run fewer blocks (--blocks), or run it with check=False"
        )


class Knowledge:
    """What the threads of one machine have seen. Threads are counted through the batch; `first` is the number of the
    first one in the launch. `ordered`: whether atomics and fences order blocks; else a row is of the threads of its
    block (or cluster) only, and those of others are never seen."""

    def __init__(self, machine: Any, order: Order, first: int, ordered: bool):
        self.machine, self.order, self.first, self.ordered = machine, order, first, ordered
        m = machine
        order.blocks[first // m.nt : first // m.nt + m.nb] = m.blocks
        self.warps = -(-m.nt // 32)
        count = m.nb * m.nt
        t = np.arange(count)
        self.warp = t // m.nt * self.warps + t % m.nt // 32  # of each thread
        rows, unit = m.nb * self.warps, m.cluster_size * m.nt
        self.columns = order.threads if ordered else unit
        check_watched(m.kernel, rows, self.columns)
        self.low = np.zeros(count, np.int64) if ordered else first + t // unit * unit  # thread of column 0
        self.now = np.zeros((rows, self.columns), np.int32)
        self.row = self.warp.copy()  # of each thread
        self.epoch = np.ones(rows, np.int32)
        self.base_rows = rows
        self.spare: list[int] = []  # rows of lanes that are free again
        self.fences: dict[int, dict[int, Mark]] = {}  # thread -> scope -> row at its last fence
        self.heard: dict[int, dict[int, Mark]] = {}  # thread -> scope -> what its relaxed reads have found
        self.narrow: dict[int, np.ndarray] = {}  # thread -> what a wider scope would have told it

    # -- rows

    def _own_row(self, thread: int) -> int:
        """A row that only this thread has."""
        row = int(self.row[thread])
        if row >= self.base_rows and (self.row == row).sum() == 1:
            return row
        fresh = self._new_row()
        self.now[fresh] = self.now[row]
        self.row[thread] = fresh
        return fresh

    def _new_row(self) -> int:
        if not self.spare:
            more = max(8, len(self.now) // 4)
            self.spare = list(range(len(self.now) + more - 1, len(self.now) - 1, -1))
            self.now = np.concatenate([self.now, np.zeros((more, self.columns), np.int32)])
        return self.spare.pop()

    def _free(self, rows: Iterable[int]) -> None:
        self.spare += [r for r in rows if r >= self.base_rows and not (self.row == r).any()]

    def _column(self, threads: np.ndarray) -> np.ndarray:
        return self.first + threads - self.low[threads]

    # -- barriers

    def meet_lanes(self, mask) -> None:
        """The active lanes of each warp have met."""
        m = self.machine
        if mask is None and (self.row == self.warp).all():
            threads = np.arange(m.nb * m.nt)
            self.now[self.warp, self._column(threads)] = self.epoch[self.warp]
            self.epoch += 1
            return
        active = m.everyone(mask)
        threads = np.flatnonzero(active)
        for w in np.unique(self.warp[threads]):
            lanes = threads[self.warp[threads] == w]
            rows = np.unique(self.row[lanes])
            seen = self.now[rows].max(axis=0)
            seen[self._column(lanes)] = self.epoch[w]
            self.epoch[w] += 1
            whole = len(lanes) == (self.warp == w).sum()
            target = int(w) if whole else self._new_row()
            self.now[target] = seen
            self.row[lanes] = target
            self._free(rows)

    def leave(self, b: int, w: int, into: np.ndarray, some: np.ndarray | None = None) -> None:
        """The lanes of a warp arrive somewhere (`some`, bool [32]: those): they leave what they have done and seen."""
        warp, lanes = b * self.warps + w, self._lanes(b, w, some)
        np.maximum(into, self.now[self._rows(lanes)].max(axis=0), out=into)
        into[self._column(lanes)] = self.epoch[warp]
        self.epoch[warp] += 1

    def take(self, b: int, w: int, from_: np.ndarray, some: np.ndarray | None = None) -> None:
        """The lanes of a warp take over what was left somewhere."""
        lanes = self._lanes(b, w, some)
        rows = self._rows(lanes)
        if some is not None:  # away from the lanes that do not
            for row in rows:
                fresh = self._new_row()
                self.now[fresh] = np.maximum(self.now[row], from_)
                self.row[lanes[self.row[lanes] == row]] = fresh
            self._free(rows)
            return
        self.now[rows] = np.maximum(self.now[rows], from_)
        warp = b * self.warps + w
        if len(rows) > 1 or rows[0] != warp:
            merged = self.now[rows].max(axis=0)
            if (self.now[rows] == merged).all():  # all lanes know the same again
                self.now[warp] = merged
                self.row[lanes] = warp
                self._free(rows)

    def _rows(self, lanes: np.ndarray) -> np.ndarray:
        """The rows of some threads, each once."""
        rows = self.row[lanes]
        return rows[:1] if (rows == rows[0]).all() else np.unique(rows)

    def _lanes(self, b: int, w: int, some: np.ndarray | None) -> np.ndarray:
        """The threads of a warp, or some of them, counted through the batch."""
        nt = self.machine.nt
        lanes = np.arange(b * nt + 32 * w, b * nt + min(32 * w + 32, nt))
        return lanes if some is None else lanes[some[: len(lanes)]]

    # -- releases and acquires

    def _publish(self, thread: int) -> Mark:
        """What a thread has done and seen, at a release; its warp's next epoch begins."""
        w = self.warp[thread]
        row = self.now[self.row[thread]].copy()
        row[self.first + thread] = self.epoch[w]
        self.epoch[w] += 1
        clocks, nt = self.machine.clocks, self.machine.nt
        return Mark(row, clocks.publish(thread // nt, thread % nt))

    def _learn(self, thread: int, mark: Mark) -> None:
        own = self._own_row(thread)
        np.maximum(self.now[own], mark.row, out=self.now[own])
        if mark.shared is not None:
            nt = self.machine.nt
            self.machine.clocks.learn(thread // nt, thread % nt, mark.shared)

    def fence(self, threads: np.ndarray, scope: int, release: bool, acquire: bool) -> None:
        """A fence by some threads: relaxed reads in front of it acquire, relaxed writes behind it release."""
        for thread in threads.tolist():
            if acquire and thread in self.heard:
                heard = self.heard[thread]
                for s in [s for s in heard if s <= scope]:
                    self._learn(thread, heard.pop(s))
                for mark in heard.values():
                    self._hear_narrow(thread, mark.row)
            if release:
                mark = self._publish(thread)
                kept = self.fences.setdefault(thread, {})
                for s in [s for s in kept if s <= scope]:
                    del kept[s]
                kept[scope] = mark

    def _hear_narrow(self, thread: int, row: np.ndarray) -> None:
        known = self.narrow.get(thread)
        self.narrow[thread] = row.copy() if known is None else np.maximum(known, row)

    def audiences(self, thread: int, scope: int) -> list[tuple]:
        """Whom a scope includes, from narrow to wide."""
        m = self.machine
        b = thread // m.nt
        block = int(m.blocks[b])
        cluster = self.first // m.nt // m.cluster_size + b // m.cluster_size
        return [(BLOCK, block), (CLUSTER, cluster), (DEVICE,)][: scope + 1]

    def atomic(self, buffer: Buffer, cell: int, thread: int, scope: int, *, reads: bool, writes: bool, acquire: bool,
               release: bool) -> None:  # fmt: skip
        """One thread's atomic access to a granule, in the order in which they happen."""
        key = (id(buffer), cell)
        location = self.order.locations.get(key)
        if reads and location is not None:
            self._read(location, thread, scope, acquire)
        if not writes:
            return
        marks = [(min(s, scope), mark) for s, mark in self.fences.get(thread, {}).items()]
        released = self._publish(thread) if release else None
        if released is not None:
            marks.append((scope, released))
        if location is None or not reads:
            own = {} if location is None else location.own
            me = self.first + thread
            location = self.order.locations[key] = Location(own={me: own[me]} if me in own else {})
        mine = location.own.get(self.first + thread)
        if mine is not None:  # a release and a later write of the same thread (PTX ISA, "Release Patterns")
            marks.append((min(mine[0], scope), mine[1]))
        for s, mark in marks:
            np.maximum(self.order.released[s], mark.row, out=self.order.released[s])
            for who in self.audiences(thread, s):
                here = Mark(mark.row, None) if who == (DEVICE,) else mark
                known = location.left.get(who)
                location.left[who] = here if known is None else known.join(here)
        if released is not None:
            location.own[self.first + thread] = (scope, released)

    def _read(self, location: Location, thread: int, scope: int, acquire: bool) -> None:
        everyone = self.audiences(thread, DEVICE)
        for s, who in enumerate(everyone):
            mark = location.left.get(who)
            if mark is None:
                continue
            if s > scope:
                self._hear_narrow(thread, mark.row)
            elif acquire:
                self._learn(thread, mark)
            else:
                heard = self.heard.setdefault(thread, {})
                heard[s] = heard[s].join(mark) if s in heard else mark

    def fence_proxies(self, mask) -> None:
        """A proxy fence of global memory by the active threads: it covers the writes that they have seen (proxies.py),
        their own among them."""
        m, order = self.machine, self.order
        threads = np.flatnonzero(m.everyone(mask))
        _, first = np.unique(self.row[threads], return_index=True)
        for buffer in order.generic.values():
            flagged = np.flatnonzero(buffer.generic)  # type: ignore[arg-type]
            if not len(flagged) or not len(threads):
                continue
            shadow = order.shadow(buffer)
            writer, epoch = (x[flagged // order.granule] for x in (shadow.writer, shadow.epoch))
            covered = (writer < 0) | np.isin(writer, self.first + threads)
            for thread in threads[first]:
                covered |= ~self._unseen(np.full(len(flagged), thread), writer, epoch)
            buffer.generic[flagged[covered]] = 0  # type: ignore[index]

    # -- accesses

    def access(self, buffer: Buffer, first: np.ndarray, span: int, threads: np.ndarray, kind: str, op,
               scope: int = DEVICE, note: bool = True) -> None:  # fmt: skip
        """Checks accesses to granules (first [n], `span` each) by threads [n] against all that came before, and notes
        them (`note`). `kind`: read, write, atomic load or atomic write; `scope` is that of an atomic."""
        order, shadow = self.order, self.order.shadow(buffer)
        cells = first[:, None] + np.arange(span)
        number = order.number(op, scope)
        flat, who = cells.ravel(), np.repeat(threads, span)
        writer = shadow.writer[flat]
        bad = (writer >= 0) & self._unseen(who, writer, shadow.epoch[flat])
        if bad.any():
            i = int(np.argmax(bad))
            other = (int(writer[i]), int(shadow.epoch[flat[i]]), "write", int(shadow.op[flat[i]]))
            self._complain(buffer, int(flat[i]), int(who[i]), kind, op, other, int(bad.sum()))
        else:
            self._check_sets(buffer, flat, who, kind, op)
        if not note:
            return
        epoch = self.epoch[self.warp[threads]]
        if kind == "atomic write":
            epoch = self._fenced(threads, epoch)
        if kind != "write":
            shadow.sets[kind].add(cells, self.first + threads, epoch, number)
            if kind != "read" and min(order.scopes) < DEVICE:
                self._check_scopes(buffer, flat, who, kind, scope, op)
            return
        for stamps in shadow.sets.values():
            stamps.forget(flat)
        shadow.writer[flat], shadow.epoch[flat], shadow.op[flat] = self.first + who, np.repeat(epoch, span), number
        again = shadow.writer[flat] != self.first + who  # several threads at once
        if again.any():
            i = int(np.argmax(again))
            other = (int(shadow.writer[flat[i]]), int(shadow.epoch[flat[i]]), "write", number)
            self._complain(buffer, int(flat[i]), int(who[i]), kind, op, other, int(again.sum()))

    def _fenced(self, threads: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        """The epochs of atomic writes: that of a thread's last fence where there is one, since who acquires by reading
        what was written also comes after the write itself (PTX ISA, "Causality Order": observation)."""
        epoch = epoch.copy()
        for i, thread in enumerate(threads.tolist()):
            for mark in self.fences.get(thread, {}).values():
                epoch[i] = min(epoch[i], mark.row[self.first + thread])
        return epoch

    def _check_sets(self, buffer: Buffer, flat: np.ndarray, who: np.ndarray, kind: str, op) -> None:
        shadow = self.order.shadow(buffer)
        for name in _CONFLICTS[kind]:
            found = shadow.sets[name].of(flat)
            if found is not None and self._check_stamps(buffer, flat, who, kind, op, name, found, None):
                return

    def _check_scopes(self, buffer: Buffer, flat: np.ndarray, who: np.ndarray, kind: str, scope: int, op) -> None:
        """Checks atomic accesses against others, which must include each other in their scopes."""
        shadow = self.order.shadow(buffer)
        for name in ("atomic write",) if kind == "atomic load" else ("atomic write", "atomic load"):
            found = shadow.sets[name].of(flat)
            if found is not None and self._check_stamps(buffer, flat, who, kind, op, name, found, scope):
                return

    def _check_stamps(self, buffer, flat, who, kind: str, op, name: str, found: tuple, scope: int | None) -> bool:
        """Whether one of the stamps found is of an access that this one must come after and does not; `scope`: only
        those that are atomic for other threads than this one's."""
        which, thread, epoch, number = found
        bad = self._unseen(who[which], thread, epoch)
        if scope is not None and bad.any():
            common = np.minimum(scope, np.array(self.order.scopes)[number])
            nt, size = self.machine.nt, self.machine.cluster_size
            mine = (self.first + who[which]) // nt
            theirs = thread // nt
            needed = np.where(theirs // size == mine // size, CLUSTER, DEVICE)
            bad &= common < np.where(theirs == mine, BLOCK, needed)
        if not bad.any():
            return False
        i = int(np.argmax(bad))
        other = (int(thread[i]), int(epoch[i]), name, int(number[i]))
        self._complain(buffer, int(flat[which[i]]), int(who[which[i]]), kind, op, other, int(bad.sum()), scope)
        return True

    def _unseen(self, who: np.ndarray, thread: np.ndarray, epoch: np.ndarray) -> np.ndarray:
        """Which accesses, by threads of the launch in their epochs, the threads of this machine have not seen."""
        column = thread - self.low[who]
        inside = (column >= 0) & (column < self.columns)
        known = self.now[self.row[who], np.where(inside, column, 0)]
        return (thread != self.first + who) & ~(inside & (known >= epoch))

    def _complain(self, buffer: Buffer, cell: int, thread: int, kind: str, op, other: tuple, count: int,
                  scope: int | None = None) -> None:  # fmt: skip
        m, order = self.machine, self.order
        them, epoch, verb, number = other
        block, foreign = int(m.blocks[thread // m.nt]), int(order.blocks[them // m.nt])
        between = block != foreign
        whom = f"block {foreign} thread {them % m.nt}" if between else f"thread {them % m.nt}"
        place = order.ops[number]
        why = self._missing(thread, them, epoch, between) if scope is None else "atomics of too narrow a scope"
        message = f"{_VERBS[kind]} byte {cell * order.granule} of {buffer.name}, which {whom} {_VERBS[verb]} "
        message += f"({place.name} at {m.report.place(place)}): {why}"
        m.complain_of("race between blocks" if between else "race", thread, message, op, count)

    def _missing(self, thread: int, them: int, epoch: int, between: bool) -> str:
        """What is missing between another thread's access in its epoch and this thread's."""
        m, order = self.machine, self.order
        if not self.ordered:
            return "nothing orders them" if between else "no barrier orders them"
        nt = m.nt
        mates = slice(them // nt * nt, (them // nt + 1) * nt)
        if order.released[BLOCK:, them].max() < epoch:
            if order.released[:, mates].any():
                return "no release covers that (a barrier, then a fence in front of an atomic write, or its order)"
            return "there is no release behind that (a fence in front of an atomic write, or its order)"
        if between and order.released[DEVICE, them] < epoch:
            return "the scope of the release is too narrow"
        lanes = [t for t in range(thread // nt * nt, (thread // nt + 1) * nt)]
        if any(t in self.narrow and self.narrow[t][them] >= epoch for t in lanes):
            return "the scope of the acquire is too narrow"
        if any(mark.row[them] >= epoch for t in lanes for mark in self.heard.get(t, {}).values()):
            return "the atomic read of the flag does not acquire (its order, or a fence behind it)"
        knowing = [t for t in lanes if self.now[self.row[t], them] >= epoch]
        if knowing:
            return f"thread {knowing[0] % nt} has acquired that, and no barrier follows"
        return "there is no acquire of what was released"
