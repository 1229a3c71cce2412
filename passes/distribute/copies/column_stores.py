"""Results of products that were computed as their transposes, on their way to tensor copies: a warp holds sixteen
columns of a tile, as wgmma's rows are, and stmatrix transposes 8x8 matrices of 16 bits into rows of 32 bytes."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.mlir import ir, llvm, memref
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.layouts.registers import Factor, Layout
from mlirc.passes.distribute.layouts.shared import SharedLayout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.convert import HALF
from mlirc.passes.distribute.tiles.values import Fragment

COLUMNS, MATRIX = 16, 8  # of a panel, and of a matrix each way
TALL = 192  # rows of a tile beyond which shared memory is for its operands: panels are small


def panel_rows(rows: int) -> int:
    """Rows of a panel, at most, of a tile that has so many."""
    return min(rows, 64 if rows <= TALL else 16)


def stored_bytes(rows: int) -> int:
    """Bytes of shared memory that a warp takes for its panels of 16-bit results, of which two are on their way."""
    return 2 * panel_rows(rows) * COLUMNS * 2


@dataclass(frozen=True)
class Panel:
    """Rows and columns of a warp that leave together: sixteen columns from register column `column` on."""

    row: int
    rows: int
    column: int


def panels(em: Emitter, frag: Fragment) -> list[Panel]:
    """The panels of a tile whose lanes hold columns; none where they hold them otherwise."""
    layout = frag.layout
    if em.target is None or not em.target.has_stmatrix or str(frag.element) not in HALF or layout.xors:
        return []
    if layout.rank < 2 or any(n != 1 for n in layout.shape[:-2]) or layout.shape[-2] % MATRIX:
        return []
    rows, columns = (_forms(d) for d in layout.dims[-2:])
    above = {kind for kind, _, _ in rows[:-2]}, {kind for kind, _, _ in columns[:-2]}
    if (
        rows[-2:] != [("l", 4, 1), ("r", 2, 0)]
        or columns[-2:] != [("r", 2, 0), ("l", 8, 4)]
        or "l" in set.union(*above)
    ):
        return []
    if "w" in above[0]:
        return []
    starts = sorted({int(o) // COLUMNS * COLUMNS for o in layout.reg_offsets[:, -1]})
    extent, most = layout.shape[-2], panel_rows(layout.shape[-2])
    return [Panel(row, min(most, extent - row), start) for start in starts for row in range(0, extent, most)]


def _forms(factors: tuple[Factor, ...]) -> list[tuple[str, int, int]]:
    """Factors without the numbers of their registers."""
    return [(f.kind, f.size, 0 if f.kind == "r" else f.stride) for f in factors]


def write(em: Emitter, frag: Fragment, panel: Panel, view: access.View) -> None:
    """Writes a panel to shared memory: `view` has the warp's place in a buffer [warps, slots, rows, COLUMNS]."""
    place, shared = frag.layout.registers, view.shared
    assert shared is not None
    lead = (0,) * (frag.layout.rank - 2)
    i32 = ir.IntegerType.get_signless(32)
    with em.at_entry():
        start = memref.ExtractAlignedPointerAsIndexOp(view.base).result
        matrix, line = em.div(em.lane, MATRIX), em.rem(em.lane, MATRIX)
        row_of, column_of = em.add(em.mul(em.div(matrix, 2), MATRIX), line), em.mul(em.rem(matrix, 2), MATRIX)

    def word(row: int, column: int) -> ir.Value:
        pair = [place[(*lead, row + e, column)] for e in range(2)]
        return llvm.BitcastOp(i32, frag.read(pair)).result

    for row in range(0, panel.rows, 2 * MATRIX):
        rows = [r for r in (row, row + MATRIX) if r < panel.rows]
        values = [word(panel.row + r, panel.column + c) for r in rows for c in (0, MATRIX)]
        at = access.placed(em, view, [*view.offsets[:2], em.add(row_of, row), column_of])
        element: IndexValue = 0
        for index, extent in zip(at, view.shape, strict=True):
            element = em.add(em.mul(element, extent), index)
        pointer = em.shared_pointer(em.add(start, em.mul(element, shared.size)))
        ir.Operation.create("nvvm.stmatrix", operands=[pointer, *values], attributes=_transposed())


def _transposed() -> dict[str, ir.Attribute]:
    return {
        "layout": ir.Attribute.parse("#nvvm.mma_layout<col>"),
        "shape": ir.Attribute.parse("#nvvm.ld_st_matrix_shape<m = 8, n = 8>"),
        "eltType": ir.Attribute.parse("#nvvm.ld_st_matrix_elt_type<b16>"),
    }


def shared_of(rows: int) -> SharedLayout:
    """How a panel lies: rows of 32 bytes, whose halves are exchanged in every second four rows."""
    return SharedLayout((rows, COLUMNS), 2, 2 * COLUMNS)


def warp_column(em: Emitter, layout: Layout) -> IndexValue:
    """The first column that this warp holds."""
    only = tuple(Factor("r", f.size) if f.kind != "w" else f for f in layout.dims[-1])
    return em.team.thread_part(Layout((only,)), 0)
