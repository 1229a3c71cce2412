// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The loop moves into a loop over two parts, from zero: 3 steps of 4 are 1 and 2, and the last one ends at 10. What follows
// moves into a second loop, in which each part has three of six rows: the parts are added in order, to what the loop began
// with, and the epilogue's slice of a slice has both offsets.

// CHECK-DAG: #[[FIRST:.*]] = affine_map<(d0) -> (((d0 * 3) floordiv 2) * 4)>
// CHECK-DAG: #[[UNTIL:.*]] = affine_map<(d0) -> ((((d0 + 1) * 3) floordiv 2) * 4, 10)>
// CHECK-LABEL: func.func @rows
// CHECK: scf.forall (%[[I:.*]]) in (2)
// CHECK: %[[ROW:.*]] = affine.apply
// CHECK: %[[PARTS:.*]] = scf.forall (%[[P:.*]]) in (2) shared_outs(%[[OUT:.*]] = %{{.*}}) -> (tensor<2x6x5xf32>) {
// CHECK: %[[LB:.*]] = affine.apply #[[FIRST]](%[[P]])
// CHECK: %[[UB:.*]] = affine.min #[[UNTIL]](%[[P]])
// CHECK: %[[ZERO:.*]] = linalg.fill ins(%{{.*}} : f32)
// CHECK: %[[LOOP:.*]] = scf.for %{{.*}} = %[[LB]] to %[[UB]] step %{{.*}} iter_args(%{{.*}} = %[[ZERO]])
// CHECK: tensor.parallel_insert_slice %[[LOOP]] into %[[OUT]][%[[P]], 0, 0] [1, 6, 5]
// CHECK: scf.forall (%[[Q:.*]]) in (2) shared_outs(%{{.*}} = %{{.*}}) -> (tensor<6x5xf32>)
// CHECK: %[[SHARE:.*]] = affine.apply #{{.*}}(%[[Q]])
// CHECK: %[[START:.*]] = linalg.fill ins(%{{.*}} : f32) outs(%{{.*}} : tensor<3x5xf32>)
// CHECK: %[[MINE:.*]] = tensor.extract_slice %[[PARTS]][0, %[[SHARE]], 0] [2, 3, 5]
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}}["reduction", "parallel", "parallel"]} ins(%[[MINE]] {{.*}} outs(%[[START]]
// CHECK: %[[BOTH:.*]] = affine.apply #{{.*}}(%[[ROW]], %[[SHARE]])
// CHECK: %[[RES:.*]] = tensor.extract_slice %arg2[%[[BOTH]], 0] [3, 5]
// CHECK: linalg.generic {{.*}} ins(%[[SUM]], %[[RES]]
// CHECK: tensor.parallel_insert_slice %{{.*}} into %{{.*}}[%[[SHARE]], 0] [3, 5]

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @rows(%x: tensor<12x10xf32>, %w: tensor<5x10xf32>, %res: tensor<12x5xf32>) -> tensor<12x5xf32> {
    %one = arith.constant 1.0 : f32
    %e = tensor.empty() : tensor<12x5xf32>
    %fill = linalg.fill ins(%one : f32) outs(%e : tensor<12x5xf32>) -> tensor<12x5xf32>
    %c = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<12x10xf32>, tensor<5x10xf32>) outs(%fill : tensor<12x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.mulf %l, %r : f32
      %1 = arith.addf %out, %0 : f32
      linalg.yield %1 : f32
    } -> tensor<12x5xf32>
    %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%c, %res : tensor<12x5xf32>, tensor<12x5xf32>) outs(%e : tensor<12x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.addf %l, %r : f32
      linalg.yield %0 : f32
    } -> tensor<12x5xf32>
    return %r : tensor<12x5xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %root = "schedule.match_root"(%func) : (!transform.any_op) -> !transform.any_op
    %forall = "schedule.tile_to_blocks"(%root) {sizes = array<i64: 6, 0>, keep = array<i64>, order = array<i64>}
        : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_contractions"(%forall) : (!transform.any_op) -> !transform.any_op
    %tiled, %loop = "schedule.tile_reduction"(%found) {size = 4 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %partial, %finish = "schedule.split_k"(%loop) {parts = 2 : i64, through = "cluster"}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
