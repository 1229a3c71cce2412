// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The right operand's slice is read one step ahead: for the first step in front, in the loop for the next one, and by the
// last step not at all. 10 is no multiple of 4: what the loop carries has the slice's bounds, and is cut where it is read.

// CHECK-DAG: #[[SIZE:.*]] = affine_map<(d0) -> (-d0 + 10, 4)>
// CHECK-DAG: #[[NEXT:.*]] = affine_map<(d0) -> (d0 + 4)>
// CHECK-LABEL: func.func @product
// CHECK: %[[FIRST:.*]] = scf.for %[[I:.*]] = %c0{{.*}} to %c4{{.*}} -> (tensor<5x4xf32>)
// CHECK: tensor.extract_slice %arg1[0, %[[I]]] [5, %{{.*}}]
// CHECK: tensor.insert_slice
// CHECK: %[[MAIN:.*]]:2 = scf.for %[[K:.*]] = %c0{{.*}} to %c6{{.*}} iter_args(%[[SUM:.*]] = %{{.*}}, %[[B:.*]] = %[[FIRST]])
// CHECK: %[[AFTER:.*]] = affine.apply #[[NEXT]](%[[K]])
// CHECK: tensor.extract_slice %arg1[0, %[[AFTER]]]
// CHECK: %[[COMING:.*]] = tensor.insert_slice
// CHECK: %[[LEFT:.*]] = affine.min #[[SIZE]](%[[K]])
// CHECK: %[[A:.*]] = tensor.extract_slice %arg0[0, %[[K]]]
// CHECK: %[[CUT:.*]] = tensor.extract_slice %[[B]][0, 0] [5, %[[LEFT]]]
// CHECK: %[[NEW:.*]] = linalg.generic {{.*}} ins(%[[A]], %[[CUT]] : {{.*}} outs(%[[SUM]] :
// CHECK: scf.yield %[[NEW]], %[[COMING]]
// CHECK: %[[LAST:.*]] = scf.for %[[J:.*]] = %c8{{.*}} to %c10{{.*}} iter_args(%{{.*}} = %[[MAIN]]#0)
// CHECK-NOT: %arg1
// CHECK: tensor.extract_slice %[[MAIN]]#1[0, 0]
// CHECK: return %[[LAST]]

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @product(%x: tensor<6x10xf32>, %w: tensor<5x10xf32>, %fill: tensor<6x5xf32>) -> tensor<6x5xf32> {
    %r = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<6x10xf32>, tensor<5x10xf32>) outs(%fill : tensor<6x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.mulf %l, %r : f32
      %1 = arith.addf %out, %0 : f32
      linalg.yield %1 : f32
    } -> tensor<6x5xf32>
    return %r : tensor<6x5xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_contractions"(%func) : (!transform.any_op) -> !transform.any_op
    %tiled, %loop = "schedule.tile_reduction"(%found) {size = 4 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %slices = "schedule.match_operands"(%tiled) {number = 1 : i64} : (!transform.any_op) -> !transform.any_op
    %loops, %moved = "schedule.rotate"(%loop, %slices) {ahead = 1 : i64}
        : (!transform.any_op, !transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
