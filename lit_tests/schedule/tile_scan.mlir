// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// A block walks along its row: the carry of one step is what the next one starts from, each stores its part of the
// result, and the map in front comes into the loop. 10 is no multiple of 4, so a slice's size is an affine.min.

// CHECK-LABEL: func.func @sums
// CHECK: scf.forall (%[[I:.*]]) in (6) shared_outs(%[[OUT:.*]] = %{{.*}})
// CHECK: %[[FILL:.*]] = linalg.fill
// CHECK: %[[ROW:.*]] = tensor.extract_slice %[[OUT]][%[[I]], 0] [1, 10]
// CHECK: %[[LOOP:.*]]:2 = scf.for %[[K:.*]] = %c0 to %c10 step %c4 iter_args(%[[CARRY:.*]] = %[[FILL]], %[[PART:.*]] = %[[ROW]])
// CHECK: %[[SIZE:.*]] = affine.min #{{.*}}(%[[K]])
// CHECK: tensor.extract_slice %arg0[%[[I]], %[[K]]] [1, %[[SIZE]]]
// CHECK: %[[X:.*]] = linalg.generic {{.*}}["parallel", "parallel"]
// CHECK: %[[SCAN:.*]]:2 = linalg.generic {{.*}}["parallel", "reduction"]{{.*}} ins(%[[X]] {{.*}} outs(%{{.*}}, %[[CARRY]] :
// CHECK-SAME: mlirc.scan
// CHECK: %[[NEW:.*]] = tensor.insert_slice %[[SCAN]]#0 into %[[PART]][0, %[[K]]] [1, %[[SIZE]]]
// CHECK: scf.yield %[[SCAN]]#1, %[[NEW]]
// CHECK: tensor.parallel_insert_slice %[[LOOP]]#1 into %[[OUT]][%[[I]], 0] [1, 10]

#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (i)>
module attributes {transform.with_named_sequence} {
  func.func @sums(%x: tensor<6x10xf32>) -> tensor<6x10xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<6x10xf32>
    %c = tensor.empty() : tensor<6xf32>
    %fill = linalg.fill ins(%zero : f32) outs(%c : tensor<6xf32>) -> tensor<6xf32>
    %p = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<6x10xf32>) outs(%e : tensor<6x10xf32>) {
    ^bb0(%in: f32, %out: f32):
      %0 = arith.negf %in : f32
      linalg.yield %0 : f32
    } -> tensor<6x10xf32>
    %r:2 = linalg.generic {indexing_maps = [#id, #id, #row], iterator_types = ["parallel", "reduction"]}
        ins(%p : tensor<6x10xf32>) outs(%e, %fill : tensor<6x10xf32>, tensor<6xf32>) attrs = {mlirc.scan} {
    ^bb0(%in: f32, %out: f32, %carry: f32):
      %0 = arith.addf %carry, %in : f32
      linalg.yield %0, %0 : f32, f32
    } -> (tensor<6x10xf32>, tensor<6xf32>)
    return %r#0 : tensor<6x10xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %f = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %root = "schedule.match_root"(%f) : (!transform.any_op) -> !transform.any_op
    %forall = "schedule.tile_to_blocks"(%root) {sizes = array<i64: 1, 0>, keep = array<i64: 0>, order = array<i64>}
        : (!transform.any_op) -> !transform.any_op
    %loop = "schedule.tile_scan"(%forall) {size = 4 : i64} : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
