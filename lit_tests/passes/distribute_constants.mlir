// RUN: %mlirc-opt %s --pass mlirc-distribute | %filecheck %s

// A constant tensor of one element is that element wherever a block reads a slice of it, or of a reshape of it.
// CHECK-LABEL: gpu.func @constant(%arg0: memref<1x64x4x1xi64>)
// CHECK: %[[TWO:.*]] = arith.constant dense<2> : vector<2xi64>
// CHECK-NOT: load
// CHECK: arith.addi %{{.*}}, %[[TWO]] : vector<2xi64>
// CHECK-NOT: load
// CHECK: vector.store
#id = affine_map<(d) -> (d)>
func.func private @constant() -> tensor<1x64x4x1xi64> attributes {mlirc.kernel, mlirc.warps = 1 : i32} {
  %c = arith.constant dense<2> : tensor<1x64x4x1xi64>
  %flat = tensor.collapse_shape %c [[0, 1, 2, 3]] : tensor<1x64x4x1xi64> into tensor<256xi64>
  %e = tensor.empty() : tensor<256xi64>
  %r = scf.forall (%b) in (2) shared_outs(%o = %e) -> (tensor<256xi64>) {
    %at = affine.apply affine_map<(d) -> (d * 128)>(%b)
    %part = tensor.extract_slice %flat[%at] [128] [1] : tensor<256xi64> to tensor<128xi64>
    %init = tensor.empty() : tensor<128xi64>
    %sum = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
        ins(%part : tensor<128xi64>) outs(%init : tensor<128xi64>) {
    ^bb0(%x: i64, %y: i64):
      %i = linalg.index 0 : index
      %j = arith.index_cast %i : index to i64
      %s = arith.addi %x, %j : i64
      linalg.yield %s : i64
    } -> tensor<128xi64>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %sum into %o[%at] [128] [1] : tensor<128xi64> into tensor<256xi64>
    }
  } {mapping = [#gpu.block<x>]}
  %whole = tensor.expand_shape %r [[0, 1, 2, 3]] output_shape [1, 64, 4, 1] : tensor<256xi64> into tensor<1x64x4x1xi64>
  return %whole : tensor<1x64x4x1xi64>
}
