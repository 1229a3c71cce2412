"""Packed weights as numbers and what multiplies many of them: a product adds up the numbers, and scales their sums."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.tiles.elementwise import Body, Elementwise
from mlirc.passes.distribute.tiles.values import Fragment, Tile


class Factored:
    """A tile of weights (`mlirc.dequantize`) in a layout, whose elements are `numbers` times scales."""

    def __init__(self, tile: Elementwise, layout: Layout, body: Body, number: ir.Value, scale: ir.Value):
        self._body, self._scale = body, scale
        pieces = body.fragment_pieces(number)
        self.numbers = Fragment(tile.em, tile.element, tile.shape, tile.sizes, layout, pieces, body.piece)

    @staticmethod
    def of(tile: Tile, layout: Layout) -> Factored | None:
        """None where a tile's last operation does not multiply a number by a scale."""
        if not isinstance(tile, Elementwise) or not tile.unpacks or tile.out_dims != list(range(layout.rank)):
            return None
        with tile.place():
            body = tile.body(layout)
            product = body.yields()[tile.number].owner
            if isinstance(product, ir.Block) or product.name != "arith.mulf" or body.unpacking is None:
                return None
            by_words = [_reads_words(v) for v in product.operands]
            if sorted(by_words) != [False, True]:
                return None
            number, scale = sorted(product.operands, key=_reads_words, reverse=True)
            return Factored(tile, layout, body, number, scale)

    def one_scale(self, registers: list[int], lanes: int) -> bool:
        """Whether these registers' elements have one scale in common, in `lanes` lanes that follow each other, too."""
        unpacking = self._body.unpacking
        assert unpacking is not None
        for index in [v for op in _reads(self._scale) for v in list(op.operands)[1:]]:
            forms = {unpacking.form(index, r) for r in registers}
            form = forms.pop()
            if forms or form is None:
                return False
            # Atoms of a lane's number are ("d", ("l", stride), size).
            strides = [atom[1][1] for atom in form.atoms() if atom[0] == "d" and atom[1][0] == "l"]
            if any(stride < lanes for stride in strides):
                return False
        return True

    def scale(self, register: int) -> ir.Value:
        """The scale of a register's element."""
        piece = self._body.piece
        found = self._body.at(self._scale, register // piece)
        return self._body.em.extract(found, register % piece) if isinstance(found.type, ir.VectorType) else found


def _reads(value: ir.Value) -> list[ir.Operation]:
    """The loads that a value of a body is computed from; an argument of the body is none."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.parent.name != "linalg.generic":
        return []
    if owner.name == "tensor.extract":
        return [owner]
    return [op for v in owner.operands for op in _reads(v)]


def _reads_words(value: ir.Value) -> bool:
    return any(str(op.results[0].type) == "i32" for op in _reads(value))
