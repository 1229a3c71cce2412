"""What a schedule script may know of a kernel's contractions: sizes, operand types, and how operands can be copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from mlirc.dialects.mlirc_dialect import DEQUANTIZE, GATHER_MATRICES
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._dims import Contraction, Dims, Structure, contraction, producer, structure
from mlirc.dialects.schedule.read_windows import copied
from mlirc.dialects.windows import Windows
from mlirc.ir.contractions import multiply_accumulate
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir

ROW_BYTES = 128  # of a tile in shared memory that warpgroups read
NARROW = 32  # of one that lies in panels for them: of 16 bits, or of f32 that come through registers
VIEWS = ("tensor.expand_shape", "tensor.collapse_shape")


@dataclass(frozen=True)
class ContractionInfo:
    """A matmul-like kernel: sizes, operand types, and which root dimensions are batch, m and n."""

    batch: tuple[int, ...]  # root dimensions
    m: tuple[int, ...]  # root dimensions
    n: tuple[int, ...]  # root dimensions
    k: int  # extent
    a_type: str
    b_type: str
    acc_type: str
    count: int  # contractions that share the loop over k
    # Every operand is a kernel argument (or a view of one) with rows along k, m or n, of even length or 4 bytes each.
    direct: bool
    panels: bool  # rows of the second operand run along n
    along_k: tuple[bool, bool]  # whether rows of the first and of the second operand run along k
    boxes: bool  # and tensor copies can cut slices from them: 2 to 5 dimensions, rows of a multiple of 16 bytes
    casts: frozenset[str] = frozenset()  # of the operands' elements, in front of the products: names of operations
    chosen: bool = False  # the second operands are matrices that numbers choose, one for each index of the batch
    alignable: bool = False  # both would hold but for the lengths of rows: `schedule.align_rows` makes others of them
    packed: int = 0  # bits of a number where every second operand is a packed weight [N, K] that the kernel unpacks
    windows: Windows | None = None  # a convolution's, which are an operand and can come by im2col copies
    windows_at: int = 0  # which operand they are
    left_boxes: bool = False  # as `boxes`, of the first operands alone
    scaled: int = 0  # elements of each row that are reduced beside the products, as what their sums are multiplied by

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of the wider operand."""
        return max(ELEMENT_BYTES.get(t, 8) for t in (self.a_type, self.b_type))

    @property
    def narrow(self) -> bool:
        """Whether a convolution's taps have fewer channels than a row of shared memory."""
        return self.windows is not None and self.windows.row_bytes(self.element_bytes) < ROW_BYTES


def contraction_info(dims: Dims, row: tuple[int, ...]) -> ContractionInfo | None:
    """The common roles of the group's contractions in terms of the root's dimensions; None when there are none.

    Raises PayloadError when they do not share batch, m and n, or when other ops reduce.
    """
    found = [(i, contraction(op)) for i, op in enumerate(dims.ops)]
    found = [(i, r) for i, r in found if r]
    # without m (or n) it is a matrix-vector product, which is scheduled as the reduction that it is
    if not found or any(not (r.m and r.n) for _, r in found if r):
        return None
    others = [i for i, s in enumerate(dims.structures) if not all(s.parallel) and i not in dict(found)]
    parts = [dims.extent[c] for i in others for c in dims.of[i] if c in dims.reduced]
    shared = {c for i, r in found if r for d in (*r.batch, *r.m) for c in (dims.of[i][d],)}
    for i in others:
        kept = {c for c, parallel in zip(dims.of[i], dims.structures[i].parallel, strict=True) if parallel}
        kept = {c for c in kept if dims.extent[c] > 1}
        alone = set(dims.of[i]) - kept - {c for j, row in enumerate(dims.of) if j != i for c in row}
        if not _packed([dims.structures[j] for j, _ in found]) or not kept <= shared or kept | alone != set(dims.of[i]):
            raise PayloadError("a contraction together with another reduction", dims.ops[found[0][0]])
    choosers = [producer(dims.structures[i].inputs[1]) for i, _ in found]
    groups = {
        c for op in choosers if is_chosen(op) for c in dims.map_classes(dims.ops.index(op), structure(op).maps[0])
    }
    roles = {tuple(tuple(dims.of[i][d] for d in g) for g in (r.batch, r.m, r.n)) for i, r in found if r}
    ks = [[dims.extent[dims.of[i][d]] for d in r.k] for i, r in found if r]
    if len(roles) != 1 or any(k != ks[0] for k in ks) or len(ks[0]) != 1:
        raise PayloadError("its contractions do not share one loop", dims.ops[found[0][0]])
    batch, m, n = roles.pop()
    batch, n = (*batch, *(c for c in n if c in groups)), tuple(c for c in n if c not in groups)
    if not n:
        raise PayloadError("chosen matrices have one row each", dims.ops[found[0][0]])
    if any(c not in row for c in batch + m + n):
        raise PayloadError("the contraction's dimensions are not those of the result", dims.ops[found[0][0]])
    s = structure(dims.ops[found[0][0]])
    types = [str(ir.RankedTensorType(v.type).element_type) for v in s.operands]
    place = {c: p for p, c in enumerate(row)}
    batch, m, n = (tuple(place[c] for c in g) for g in (batch, m, n))
    direct = all(_is_direct(dims.structures[i], r) for i, r in found if r)
    inputs = [(at, producer(v)) for i, _ in found for at, v in enumerate(dims.structures[i].inputs)]
    read = next(((w, at) for at, made_by in inputs if (w := copied_windows(made_by))), (None, 0))
    boxes = direct and all(_has_boxes(dims.structures[i], r) for i, r in found if r)
    alignable = not boxes and all(
        _is_direct(dims.structures[i], r, 1) and _has_boxes(dims.structures[i], r, 1) for i, r in found if r
    )
    panels = direct and any(dims.structures[i].maps[1][-1] not in r.k for i, r in found if r)
    along_k = tuple(all(dims.structures[i].maps[o][-1] in r.k for i, r in found if r) for o in range(2))
    return ContractionInfo(
        batch, m, n, ks[0][0], types[0], types[1], types[2], len(found), direct, panels, (along_k[0], along_k[1]),
        boxes, _casts([dims.ops[i] for i, _ in found]), packed=_packed([dims.structures[i] for i, _ in found]),
        windows=read[0], windows_at=read[1], chosen=all(map(is_chosen, choosers)),
        left_boxes=all(_left_boxes(dims.structures[i], r) for i, r in found if r),
        scaled=prod(parts) if others else 0, alignable=alignable and not any(map(is_chosen, choosers)),
    )  # fmt: skip


def _packed(contractions: list[Structure]) -> int:
    """The bits of a packed weight's number, where the second operands of all products are such; else 0."""
    made_by = [producer(s.inputs[1]) for s in contractions]
    notes = [op.attributes[DEQUANTIZE] if op is not None and DEQUANTIZE in op.attributes else None for op in made_by]
    bits = {ir.IntegerAttr(n).value if isinstance(n, ir.IntegerAttr) else 0 for n in notes}
    return bits.pop() if len(bits) == 1 else 0


def _casts(contractions: list[ir.Operation]) -> frozenset[str]:
    bodies = [multiply_accumulate(op) for op in contractions]
    return frozenset(cast.name for body in bodies if body for chain in body.casts for cast in chain)


def _has_boxes(s: Structure, roles: Contraction, multiple: int = 16) -> bool:
    """Whether tensor copies can move tiles of both operands: (k, and m or n) are their last two dimensions, and rows
    have a multiple of so many bytes."""
    for value, m in zip(s.inputs, s.maps, strict=False):
        t = ir.RankedTensorType(value.type)
        row = t.shape[-1] * ELEMENT_BYTES.get(str(t.element_type), 0)
        own = {d for d in (*roles.m, *roles.n, *roles.k) if d in m}
        if not 2 <= t.rank <= 5 or not row or row % multiple or not set(m[-2:]) <= own:
            return False
    return True


def _left_boxes(s: Structure, roles: Contraction) -> bool:
    """Whether tensor copies can move tiles of the first operand, which is an argument or a view of one."""
    first = replace(s, inputs=s.inputs[:1], maps=s.maps[:1])
    return _is_direct(first, roles) and _has_boxes(first, roles)


def _is_direct(s: Structure, roles: Contraction, least: int = 4) -> bool:
    """Whether both operands of a contraction are arguments, or views of them, whose rows run along k, or along the
    longest dimension that m or n is, which is cut, and can be copied `least` bytes at a time, or two elements."""
    for value, m in zip(s.inputs, s.maps, strict=False):
        multiple = 2 if ELEMENT_BYTES.get(str(ir.RankedTensorType(value.type).element_type), 8) < least else 1
        while (made_by := producer(value)) is not None and made_by.name in VIEWS:
            value = made_by.operands[0]
        if is_chosen(made_by) or copied_windows(made_by):  # slices of which are slices of an argument
            made_by = None
        last = m[-1]
        if made_by is not None or last is None or s.extents[last] % multiple:
            return False
        outer = [d for d in (*roles.m, *roles.n) if d in m and s.extents[d] > 1]
        if last not in roles.k and any(d != last and s.extents[d] >= s.extents[last] for d in outer):
            return False
    return True


def copied_windows(op: ir.Operation | None) -> Windows | None:
    """What a convolution's windows are that a map gathers, where im2col copies bring rows of shared memory of a tap
    each, as an instruction of warpgroups reads them; None for anything else."""
    windows = Windows.of(op) if op is not None and op.name == "linalg.generic" else None
    if op is None or windows is None or copied(op):
        return None
    element = str(ir.RankedTensorType(op.results[0].type).element_type)
    size = ELEMENT_BYTES.get(element, 8)
    return windows if windows.row_bytes(size) >= (NARROW if size <= 2 or element == "f32" else ROW_BYTES) else None


def is_chosen(op: ir.Operation | None) -> bool:
    """Whether a map's result are matrices that numbers choose."""
    return op is not None and GATHER_MATRICES in op.attributes
