"""What an instruction for products says of itself: which products it takes, how it lays one over warps, and how it is
issued. All but the last is plain data, which scripts ask for, too."""

from __future__ import annotations

from typing import ClassVar

from mlirc.passes.distribute.products.geometry import HALF, BlockProduct, ElementTypes, Spread, round_up
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.values import Fragment
from mlirc.targets import Target

__all__ = ["HALF", "BlockProduct", "ElementTypes", "Instruction", "Spread", "round_up"]


class Instruction:
    """An instruction for products. The attributes say what it takes and needs:

    `meaning`: what it is, in a few words; `takes`: the element types, in words. `warps` of them together (4: a
    warpgroup) issue one, which computes `tile` sums (rows, columns) or more, `step_k` elements along k at a time;
    `accumulators`: registers for one sum while it is computed. `preference`: which is chosen where a schedule names
    none, the highest of ours that fits (0: never). `slice_bytes`: of k that operands must come in (0: any).

    `asynchronous`: it reads shared memory by itself, while the warps go on: a loop copies its operands ahead, and may
    wait for it one iteration later. `reads_padding`: sums that nobody stores must be made of zeros, too. `shares_k`: of
    warps that `mlirc.warp_grid` leaves over, each takes a part of k. `reads_global`: threads load its operands from
    global memory to registers, so that a loop copies none to shared memory but where the schedule says how.
    `reads_narrow`: rows along k may lie in panels of 64 or 32 bytes, too. `unpacks`: its first operand may be a packed
    weight whose words lie in shared memory, which is unpacked into registers.

    One that computes something else than FP32 products of what it is given states it: `rounds` is the type that it
    rounds f32 factors to (`bf16`, `f16`, `tf32`) or `13-bit sums`, `tolerance` a relative error that results may have
    for another reason. Whoever judges a kernel that names it goes by that, and says so."""

    name: ClassVar[str] = ""
    meaning: ClassVar[str] = ""
    takes: ClassVar[str] = ""
    warps: ClassVar[int] = 1
    tile: ClassVar[tuple[int, int]] = (1, 1)
    step_k: ClassVar[int] = 1
    slice_bytes: ClassVar[int] = 0
    accumulators: ClassVar[int] = 1
    preference: ClassVar[int] = 0
    asynchronous: ClassVar[bool] = False
    reads_padding: ClassVar[bool] = False
    shares_k: ClassVar[bool] = False
    reads_global: ClassVar[bool] = False
    reads_narrow: ClassVar[bool] = False
    unpacks: ClassVar[bool] = False
    rounds: ClassVar[str] = ""
    tolerance: ClassVar[float] = 0.0
    file: ClassVar[str] = ""  # that defines it, once it is registered

    def takes_types(self, types: ElementTypes) -> bool:
        """Whether it multiplies such operands into such sums."""
        raise NotImplementedError  # every instruction says

    def exists_on(self, target: Target) -> bool:
        """Whether a GPU has it."""
        return True

    def refuses(self, types: ElementTypes, target: Target | None) -> str:
        """Why it does not take such a product on a target (None: any), in a few words; "" where it does."""
        if target is not None and not self.exists_on(target):
            return f"{target.name} has no {self.name}"
        return "" if self.takes_types(types) else f"it takes {self.takes}, not {types}"

    def spread(self, p: BlockProduct) -> Spread:
        """How one product is laid over warps; raises Unsupported for extents or warps that it cannot have."""
        raise NotImplementedError  # every instruction says

    def in_panels(self, k_last: bool, k: int) -> bool:
        """Whether a loop copies an operand to shared memory in panels of 128 bytes a row: one whose rows run along k
        (`k_last`) or not, with `k` elements along it."""
        return False

    def finishes(self, types: ElementTypes) -> str:
        """When all of a product's operands have been read from shared memory: "by lanes" (of the warps, at once), "at
        once" (by the instruction, which `lower` waits for), or "later": under way until somebody reads the result, or
        gives back the slots that it reads (`emit/pending.py`)."""
        return "by lanes"

    def lower(self, product: Product) -> Fragment:
        """Emits one product: what `product.accumulator()` gives, plus the products of its operands."""
        raise NotImplementedError  # every instruction says


class WarpgroupInstruction(Instruction):
    """What wgmma is in every form: four warps issue it together, and go on while it reads shared memory."""

    warps = 4
    asynchronous = True
    reads_padding = True  # rows that no thread has, or sums that nobody stores

    def exists_on(self, target: Target) -> bool:
        return target.has_wgmma
