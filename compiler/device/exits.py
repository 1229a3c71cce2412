"""What must have come to its end before a block does: its shared memory is another block's then.

cp.async that nobody waited for; copies into shared memory whose mbarrier no thread of the block has waited for; copies
out of it that are not known to have read it (wait_group, with or without .read); wgmmas under way. And the launches
before this one, in a kernel that waits for them."""

from __future__ import annotations

import numpy as np

from mlirc.device.engine import Engine
from mlirc.device.machine import Machine


def check_exit(m: Machine) -> None:
    """Reports what is still under way in the blocks of a batch, all of whose threads have ended."""
    if not m.check:
        return
    for c in m.copies.under_way:
        threads = np.arange(m.nb * m.nt) if c.threads is None else c.threads
        who = np.zeros(m.nb * m.nt, bool)
        who[threads] = True
        message = f"ends while its copy to {c.target.buffer.name} is under way, which it has not waited for"
        m.complain("unfinished copy", who.reshape(m.nb, m.nt), message, c.op)
    if m.waited is not None and not (waited := m.waited.any(axis=1, keepdims=True)).all():
        message = "ends with no griddepcontrol.wait: who waits for this launch would not wait for those before it"
        m.complain("no griddepcontrol.wait", np.broadcast_to(~waited, m.waited.shape), message, None)
    if m.clocks is not None:
        m.clocks.lives.check_ends()
    if m.engine is None:
        return
    _check_bulk(m, m.engine)
    for r in m.engine.readings:
        m.complain("unfinished wgmma", m.one(r.block, r.thread), "ends with no wait for its wgmma", r.op)


def _check_bulk(m: Machine, engine: Engine) -> None:
    for store in engine.stores:
        if store.reading:
            message = f"ends while its copy reads {store.buffer.name}: it has not waited for its group"
            m.complain("unfinished copy", m.one(*store.who), message, store.op)
    engine.end_stores()
    for x in engine.sent.values():
        block = int(m.blocks[x.owner])
        if x.barrier.witnessed < x.phase:
            message = f"copies to the shared memory of block {block}, which ends with no wait for the mbarrier's phase"
            m.complain("unfinished copy", m.one(*x.who), message, x.op)
        elif (
            x.source is not None
            and x.source != x.owner
            and not m.clocks.block_knows(x.source, x.barrier.column, x.phase)
        ):
            message = f"copies out of the shared memory of block {int(m.blocks[x.source])}, which ends before the copy"
            m.complain("unfinished copy", m.one(*x.who), message, x.op)
