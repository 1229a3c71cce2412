// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// What stands in front of the parts of K, here the sums that they are added to, which count rows and columns, is in the
// second launch with the numbers of that launch's blocks.

// CHECK-LABEL: func.func @product
// CHECK: scf.forall (%{{.*}}, %{{.*}}, %{{.*}}) in (2, 2, 3)
// CHECK: scf.for
// CHECK: scf.forall (%[[I:.*]], %[[J:.*]], %{{.*}}) in (2, 2, 1)
// CHECK: %[[ROW:.*]] = affine.apply {{.*}}(%[[I]])
// CHECK: linalg.index 0
// CHECK: arith.addi %{{.*}}, %[[ROW]]
// CHECK: tensor.parallel_insert_slice

#m_n = affine_map<(m, n) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @product(%x: tensor<32x48xf32>, %w: tensor<32x48xf32>) -> tensor<32x32xf32> {
    %e = tensor.empty() : tensor<32x32xf32>
    %f = linalg.generic {indexing_maps = [#m_n], iterator_types = ["parallel", "parallel"]} outs(%e : tensor<32x32xf32>) {
    ^bb0(%o: f32):
      %i = linalg.index 0 : index
      %c = arith.index_cast %i : index to i32
      %n = arith.sitofp %c : i32 to f32
      linalg.yield %n : f32
    } -> tensor<32x32xf32>
    %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]
    } ins(%x, %w : tensor<32x48xf32>, tensor<32x48xf32>) outs(%f : tensor<32x32xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %p = arith.mulf %a, %b : f32
      %s = arith.addf %o, %p : f32
      linalg.yield %s : f32
    } -> tensor<32x32xf32>
    return %r : tensor<32x32xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %found = transform.structured.match ops{["linalg.generic"]} in %module : (!transform.any_op) -> !transform.any_op
    %start, %root = transform.split_handle %found : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %forall = "schedule.tile_to_blocks"(%root) {sizes = array<i64: 16, 16, 0>, keep = array<i64>, order = array<i64>}
        : (!transform.any_op) -> !transform.any_op
    %tiled = "schedule.match_contractions"(%forall) : (!transform.any_op) -> !transform.any_op
    %inner, %loop = "schedule.tile_reduction"(%tiled) {size = 8 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %partial, %finish = "schedule.split_k"(%loop) {parts = 3 : i64, through = "memory"}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
