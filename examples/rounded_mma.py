"""An instruction of one's own for products: see docs/schedules.md."""

from mlirc.mlir import arith, ir
from mlirc.passes.distribute.instructions import instruction
from mlirc.passes.distribute.instructions.mma import Mma


@instruction
class RoundedMma(Mma):
    """mma.sync m16n8k16 of f32 operands, which are rounded to bf16 where it reads them."""

    name = "rounded_mma"
    takes = "f32 operands and sums"
    rounds = "bf16"  # results are judged by that, and say so

    def takes_types(self, types):
        return set(types) == {"f32"}

    def operand(self, product, which):
        """A function from a step along k to operand 0 (A) or 1 (B): a vector of registers for each tile of the warp."""
        found = product.load(which, self.operand_layout(product, which))  # in registers, from shared memory
        rounded = found.converted(ir.BF16Type.get(), lambda type, x: arith.TruncFOp(type, x).result)
        return self.steps_of(product, which, rounded)
