// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Both ops land in one forall; the row that no tile divides gives an affine.min; the middle dimension, cut to 1, leaves
// the rank of the tiles and its index becomes the block's.

// CHECK-LABEL: func.func @chain
// CHECK: scf.forall (%[[I:.*]], %[[J:.*]]) in (3, 3) shared_outs(%[[O:.*]] = %{{.*}})
// CHECK: %[[ROW:.*]] = affine.apply #{{.*}}(%[[I]])
// CHECK: %[[ROWS:.*]] = affine.min #{{.*}}(%[[ROW]])
// CHECK: tensor.extract_slice %arg0[%[[ROW]], %[[J]], 0] [%[[ROWS]], 1, 8] [1, 1, 1] : tensor<10x3x8xf32> to tensor<?x8xf32>
// CHECK: linalg.generic
// CHECK: math.exp
// CHECK: tensor.extract_slice %arg1[0] [8] [1]
// CHECK: linalg.generic
// CHECK: arith.index_cast %[[J]]
// CHECK: scf.forall.in_parallel
// CHECK: tensor.parallel_insert_slice {{.*}} into %[[O]][%[[ROW]], %[[J]], 0] [%[[ROWS]], 1, 8]
// CHECK: mapping = [#gpu.block<y>, #gpu.block<x>]

#id = affine_map<(a, b, c) -> (a, b, c)>
#last = affine_map<(a, b, c) -> (c)>
module attributes {transform.with_named_sequence} {
  func.func @chain(%x: tensor<10x3x8xf32>, %bias: tensor<8xf32>) -> tensor<10x3x8xf32> {
    %e = tensor.empty() : tensor<10x3x8xf32>
    %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel"]}
        ins(%x : tensor<10x3x8xf32>) outs(%e : tensor<10x3x8xf32>) {
    ^bb0(%in: f32, %out: f32):
      %0 = math.exp %in : f32
      linalg.yield %0 : f32
    } -> tensor<10x3x8xf32>
    %b = linalg.generic {indexing_maps = [#id, #last, #id], iterator_types = ["parallel", "parallel", "parallel"]}
        ins(%a, %bias : tensor<10x3x8xf32>, tensor<8xf32>) outs(%e : tensor<10x3x8xf32>) {
    ^bb0(%in: f32, %c: f32, %out: f32):
      %i = linalg.index 1 : index
      %j = arith.index_cast %i : index to i32
      %f = arith.sitofp %j : i32 to f32
      %0 = arith.addf %in, %c : f32
      %1 = arith.addf %0, %f : f32
      linalg.yield %1 : f32
    } -> tensor<10x3x8xf32>
    return %b : tensor<10x3x8xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %root = "schedule.match_root"(%func) : (!transform.any_op) -> !transform.any_op
    %forall = "schedule.tile_to_blocks"(%root) {sizes = array<i64: 4, 1, 0>, keep = array<i64: 2>, order = array<i64>}
        : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
