"""Pending values: the first reader waits, wherever it stands, and nobody waits twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device.launch import DeviceKernel
from mlirc.driver.kernel_build import to_gpu
from mlirc.mlir import arith, func, ir, nvvm, scf
from mlirc.passes.distribute.emit.pending import Arrival, Carried, Groups, reaches, wait_for_all
from mlirc.targets import get_target
from support.kernels.check import assert_close
from support.kernels.payloads import inputs_of

LEVEL = Path(__file__).resolve().parents[2] / "lit_tests" / "passes" / "distribute_pending.mlir"


@pytest.fixture
def block() -> Iterator[ir.Block]:
    """The body of a function, in which things are built."""
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("f", ir.FunctionType.get([], []))
        with ir.InsertionPoint(function.add_entry_block()) as point:
            yield point.block


def mark(number: int) -> ir.Operation:
    """An op that shows where it was built."""
    return arith.ConstantOp(ir.IndexType.get(), number).operation


def shown(block: ir.Block) -> list[str]:
    """The ops of a block: numbers as such, commits as C, waits by how many they leave, loops as [...]."""
    out = []
    for op in [o.operation for o in block.operations]:
        if op.name == "arith.constant":
            out.append(str(ir.IntegerAttr(op.attributes["value"]).value))
        elif op.name == "nvvm.wgmma.wait.group.sync.aligned":
            out.append(f"wait{ir.IntegerAttr(op.attributes['group']).value}")
        elif op.name == "scf.for":
            out.append(f"[{' '.join(shown(op.regions[0].blocks[0]))}]")
        elif op.name != "scf.yield":
            out.append("C" if "commit" in op.name else op.name)
    return out


def loop() -> scf.ForOp:
    c = [arith.ConstantOp(ir.IndexType.get(), n).result for n in (100, 101, 102)]
    return scf.ForOp(*c, [])


def test_the_first_reader_waits(block: ir.Block) -> None:
    groups = Groups()
    group = groups.commit()
    mark(1)
    group.settle()
    mark(2)
    group.settle()
    assert shown(block) == ["C", "1", "wait0", "2"]
    assert not groups.under_way()


def test_a_reader_that_is_built_later_and_stands_in_front_moves_the_wait(block: ir.Block) -> None:
    groups = Groups()
    group = groups.commit()
    first, second = mark(1), mark(2)
    with ir.InsertionPoint(second):
        group.settle()
    with ir.InsertionPoint(first):
        group.settle()
    group.settle()
    assert shown(block) == ["C", "wait0", "1", "2"]


def test_a_wait_leaves_what_was_committed_behind(block: ir.Block) -> None:
    groups = Groups()
    one, two, three = groups.commit(), groups.commit(), groups.commit()
    one.settle()
    assert groups.under_way() == [two, three]
    three.settle()
    two.settle()
    assert shown(block) == ["C", "C", "C", "wait2", "wait0"]


def test_a_wait_in_front_of_a_later_commit_does_not_count_it(block: ir.Block) -> None:
    groups = Groups()
    one = groups.commit()
    reader = mark(1)
    groups.commit()
    with ir.InsertionPoint(reader):
        one.settle()
    assert shown(block) == ["C", "wait0", "1", "C"]
    assert groups.under_way() == groups.issued[1:]


def test_a_reader_in_a_loop_waits_in_front_of_it(block: ir.Block) -> None:
    groups = Groups()
    group = groups.commit()
    inner = loop()
    with ir.InsertionPoint(inner.body):
        mark(1)
        group.settle()
        mark(2)
    group.settle()
    assert shown(block) == ["C", "100", "101", "102", "wait0", "[1 2]"]


def test_nobody_reads_and_the_end_waits(block: ir.Block) -> None:
    groups = Groups()
    groups.commit(), groups.commit()
    groups.finish()
    groups.finish()
    assert shown(block) == ["C", "C", "wait0"]


def test_copies_are_waited_for_once(block: ir.Block) -> None:
    arrival = Arrival(lambda: nvvm.WgmmaWaitGroupSyncOp(7).operation)  # any op
    first, second = mark(1), mark(2)
    inner = loop()
    with ir.InsertionPoint(inner.body):
        arrival.settle()
    with ir.InsertionPoint(second):
        arrival.settle()
    with ir.InsertionPoint(first):
        arrival.settle()
    assert shown(block)[:4] == ["wait7", "1", "2", "100"] and shown(block)[-1] == "[]"


def in_loop(build) -> tuple[list[str], bool]:
    """What an iteration consists of that `build(groups)` builds, which gives what the loop carries; and whether it
    leaves something under way."""
    groups = Groups()
    with ir.InsertionPoint(loop().body) as point:
        left = groups.end_iteration(build(groups))
        return shown(point.block), left


def test_what_a_loop_carries_is_waited_for_where_it_is_read(block: ir.Block) -> None:
    def build(groups: Groups) -> dict:
        carried = Carried(groups, "sums")
        mark(1)
        carried.settle()
        carried.settle()
        mark(2)
        return {"sums": groups.commit()}

    assert in_loop(build) == (["1", "wait0", "2", "C", "wait1"], True)


def test_a_wait_for_this_iteration_covers_the_one_before(block: ir.Block) -> None:
    def build(groups: Groups) -> dict:
        carried = Carried(groups, "sums")
        scores = groups.commit()
        scores.settle()
        mark(1)
        carried.settle()
        return {"sums": groups.commit()}

    assert in_loop(build) == (["C", "wait0", "1", "C", "wait1"], True)


def test_what_is_not_under_way_at_the_loops_end_is_not_waited_for(block: ir.Block) -> None:
    def build(groups: Groups) -> dict:
        Carried(groups, "sums").settle()
        groups.commit().settle()
        return {}

    assert in_loop(build) == (["C", "wait0"], False)


def test_slots_of_the_iteration_before_wait_for_their_reader_alone(block: ir.Block) -> None:
    product, other = mark(1), mark(2)

    def build(groups: Groups) -> dict:
        groups.commit().product = product
        groups.ask_for(product)
        groups.ask_for(product)
        groups.ask_for(other)
        mark(3)
        return {"sums": groups.latest()}

    assert in_loop(build) == (["C", "wait1", "3"], True)


def test_where_a_value_is_known(block: ir.Block) -> None:
    before = mark(1)
    inner = loop()
    with ir.InsertionPoint(before):
        assert not reaches(inner.operation.operands[0])
    with ir.InsertionPoint(inner.body):
        assert reaches(before.results[0])
        inside = mark(2)
    assert not reaches(inside.results[0])
    wait_for_all()
    assert shown(block)[-1] == "wait0"


EDITS = {
    "as it is": (),
    "released in front of its readers": (("// MOVED:", ""), ('"mlirc.release"(%ring) {lag = 0 : i64} : (!mlirc.ring) -> ()  // LATE', "")),
    "read in front of its slot's next tile": (("depth = 2", "depth = 1"),),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_two_readers_on_the_host_device(edit: str) -> None:
    text = LEVEL.read_text()
    for old, new in EDITS[edit]:
        assert old in text
        text = text.replace(old, new)
    module = mlir.parse(text)
    with mlir.context(), ir.Location.unknown():
        a, b = (x.astype(np.float32) for x in inputs_of(module, 5))
        arguments = inputs_of(module, 5)
        to_gpu(module, "read", get_target("sm_90a"))
        result = np.full((64, 64), np.nan, np.float32)
        report = DeviceKernel(mlir.parse(str(module))).run([*arguments, result])
    assert report.ok, "\n".join(map(str, report.findings))
    products = [a[:, k : k + 64] @ b[:, k : k + 64].T for k in range(0, 192, 64)]
    assert_close([result], [np.sum([p * p + p for p in products], axis=0, dtype=np.float32)], 1e-3)
