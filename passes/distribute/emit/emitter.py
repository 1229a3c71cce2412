"""Emission state of one `gpu.func`: the team that works, shared memory, tensor maps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import gpu, ir, memref
from mlirc.passes.distribute.emit.builder import Builder, IndexValue, Unsupported, vec
from mlirc.passes.distribute.emit.pipeline import Pipeline
from mlirc.passes.distribute.emit.team import Team, Warps
from mlirc.passes.distribute.layouts.notes import SharedAccesses
from mlirc.runtime.tensor_map import Im2col
from mlirc.schedule.attributes import Taken
from mlirc.targets import Target

__all__ = ["WORKGROUP", "Emitter", "IndexValue", "TensorMap", "Unsupported", "vec"]

WORKGROUP = "#gpu.address_space<workgroup>"


@dataclass(frozen=True)
class TensorMap:
    """What a kernel's argument describes to tensor copies: `root`, the argument whose memory it is, seen with `shape`;
    the `box` of a copy; the bytes of a row that it swizzles over; and, where copies are im2col ones, their base
    positions."""

    root: ir.Value
    shape: list[int]
    box: list[int]
    swizzle: int
    im2col: Im2col | None = None


class Emitter(Builder):
    """Emission state of one `gpu.func`: of a block with so many warps, all of which are the `team` that works until
    others take its place (`working`)."""

    def __init__(
        self, entry: ir.Block, block_warps: int, target: Target | None = None, taken: Taken | None = None,
        spread: int = 1,
    ):  # fmt: skip
        super().__init__(entry, block_warps, spread)
        self.team = Team(self, Warps(block_warps))
        self.target = target  # None: any
        self.taken = Taken() if taken is None else taken  # what is honoured of the schedule's attributes
        self.min_blocks = 1  # that a multiprocessor should hold
        self.smem_bytes = 0
        self._smem_base: ir.Value | None = None
        self._live_smem: dict[ir.Value, tuple[int, int]] = {}
        self._given_back: list[tuple[Team, tuple[int, int]]] = []
        self._used_smem: set[ir.Value] = set()  # buffers where others were before
        self._smem_offsets: dict[ir.Value, IndexValue] = {}  # of buffers that were given back, too
        # Of the loop that is being built: iterations its copies run ahead.
        self.pipeline_depth: int | None = None
        self.pipeline: Pipeline = Pipeline()
        self.waiting: dict = {}  # products that another one computes with its own, by that one
        self.products: list[str] = []  # what was chosen for each, in words
        self.waste: list[str] = []  # what that wastes
        # What was chosen for tiles that change their registers' layout, and how those in shared memory are accessed.
        self.conversions: list[str] = []
        self.shared_accesses = SharedAccesses()
        self.meeting: list = []  # reductions for which the blocks of a cluster have not met yet
        self.turn: IndexValue | None = None  # in a loop 0 and 1 in turn, for what blocks leave each other
        self.maps: dict[ir.Value, TensorMap] = {}  # by the argument of the kernel that holds it

    @contextmanager
    def working(self, team: Team) -> Iterator[None]:
        """What is built inside is a team's."""
        outer, self.team = self.team, team
        try:
            yield
        finally:
            self.team = outer

    # -- shared memory

    def alloc_smem(self, shape: list[int], element: ir.Type, alignment: int = 128) -> ir.Value:
        """A piece of dynamic shared memory, as a memref that lives until it is given to `free_smem`; raises Unsupported
        when the target has less. Of teams that are alike each has its own."""
        if self._smem_base is None:
            with self.at_entry():
                t = ir.Type.parse(f"memref<?xi8, {WORKGROUP}>")
                self._smem_base = gpu.DynamicSharedMemoryOp(t).result
        own = size = math.prod(shape) * element_bytes(element)
        if self.team.alike > 1:
            own = -(-size // alignment) * alignment
            size = own * self.team.alike
        offset = self._find_smem(size, alignment)
        if self.target is not None and offset + size > self.target.max_smem:
            raise Unsupported(
                f"a block asks for {offset + size} bytes of shared memory, {self.target.name} has "
                f"{self.target.max_smem}: use smaller tiles or fewer stages"
            )
        # whole chunks of 16 bytes: LLVM reads three bf16 as four
        self.smem_bytes = max(self.smem_bytes, -(-(offset + size) // 16) * 16)
        with self.at_entry():
            t = ir.MemRefType.get(shape, element, memory_space=ir.Attribute.parse(WORKGROUP))
            place = self.add(offset, self.mul(self.team.number, own))
            view = memref.ViewOp(t, self._smem_base, self.value(place), []).result
        self._live_smem[view] = (offset, size)
        if any(offset < start + extent and start < offset + size for _, (start, extent) in self._given_back):
            self._used_smem.add(view)
        self._smem_offsets[view] = place
        return view

    def seen_as(self, buffer: ir.Value, shape: list[int], element: ir.Type) -> ir.Value:
        """The beginning of a buffer of `alloc_smem` as another memref."""
        assert self._smem_base is not None
        with self.at_entry():
            t = ir.MemRefType.get(shape, element, memory_space=ir.Attribute.parse(WORKGROUP))
            return memref.ViewOp(t, self._smem_base, self.value(self._smem_offsets[buffer]), []).result

    def _find_smem(self, size: int, alignment: int) -> int:
        """The lowest aligned offset at which `size` bytes overlap no live buffer."""
        offset = 0
        # What another team has given back is its own: the teams do not wait for each other.
        others = [place for team, place in self._given_back if team is not self.team]
        for start, extent in sorted([*self._live_smem.values(), *others]):
            if offset + size <= start:
                break
            offset = max(offset, -(-(start + extent) // alignment) * alignment)
        return offset

    def free_smem(self, view: ir.Value) -> None:
        """Lets later buffers of the team that works take a buffer's place; the team must meet between its last access
        and theirs."""
        self._given_back.append((self.team, self._live_smem.pop(view)))

    def meet_before_writing(self, buffer: ir.Value) -> None:
        """The team meets, if what others still read may lie in a buffer's place: in a loop, or where one was before."""
        region = ir.InsertionPoint.current.block.owner
        while region.operation.name not in ("gpu.func", "gpu.module", "builtin.module"):
            if region.operation.name in ("scf.for", "scf.while"):
                return self.team.meet()
            region = region.operation.parent
        return self.team.meet() if buffer in self._used_smem else None

    def tensor_map(self, base: ir.Value, box: list[int], swizzle: int, im2col: Im2col | None = None) -> ir.Value:
        """A new argument of the kernel: a tensor map of a memref that is an argument, or a reshape of one, whose copies
        move `box` elements (one extent per dimension, or pixels and channels of `im2col`), swizzled over rows of so
        many bytes."""
        root = base
        while not isinstance(root.owner, ir.Block):
            root = root.owner.operands[0]
        wanted = TensorMap(root, list(ir.MemRefType(base.type).shape), box, swizzle, im2col)
        for value, known in self.maps.items():
            if known == wanted:
                return value
        value = self.entry.add_argument(ir.Type.parse("!llvm.ptr"), ir.Location.current)
        self.maps[value] = wanted
        return value
