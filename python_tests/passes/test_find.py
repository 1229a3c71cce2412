"""`mlirc.mlir.find`: operations by their names."""

from mlirc import mlir
from mlirc.mlir import find, nested

TEXT = """
func.func @f(%c: i1, %n: index) -> i32 {
  cf.cond_br %c, ^a, ^b
^a:
  %x = arith.constant 1 : i32
  return %x : i32
^b:
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  scf.for %i = %zero to %n step %one {
    scf.for %j = %zero to %n step %one {
      %inner = arith.addi %i, %j : index
    }
    %outer = arith.addi %i, %i : index
  }
  %y = arith.constant 2 : i32
  return %y : i32
^nowhere:
  %z = arith.constant 3 : i32
  return %z : i32
}"""


def test_operations_of_several_names_in_order_and_none_that_nothing_reaches():
    module = mlir.parse(TEXT)
    every = [op for op in nested(module.operation) if op.name in ("arith.constant", "arith.addi")]
    assert find(module.operation, "arith.constant", "arith.addi") == every[:-1]


def test_inner_ones_before_outer_ones():
    module = mlir.parse(TEXT)
    outer, inner = [op for op in nested(module.operation) if op.name == "scf.for"]
    assert find(module.operation, "scf.for") == [inner, outer]
    assert find(outer, "scf.for") == [inner]


def test_what_was_found_may_be_erased_and_is_not_found_again():
    module = mlir.parse(TEXT)
    for op in find(module.operation, "arith.addi"):
        op.erase()
    assert find(module.operation, "arith.addi") == []
    assert len(find(module.operation, "scf.for")) == 2
