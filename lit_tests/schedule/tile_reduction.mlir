// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Two contractions that start from one fill share a loop over k with an accumulator each; the prologue along k moves into
// the loop, on the k slice; 10 is no multiple of 4, so the slice's size is an affine.min.

// CHECK-LABEL: func.func @gate_up
// CHECK: %[[FILL:.*]] = linalg.fill
// CHECK: %[[LOOP:.*]]:2 = scf.for %[[K:.*]] = %c0 to %c10 step %c4 iter_args(%[[G:.*]] = %[[FILL]], %[[U:.*]] = %[[FILL]])
// CHECK: %[[SIZE:.*]] = affine.min #{{.*}}(%[[K]])
// CHECK: tensor.extract_slice %arg0[0, %[[K]]] [6, %[[SIZE]]]
// CHECK: %[[A:.*]] = linalg.generic {{.*}}["parallel", "parallel"]
// CHECK: arith.negf
// CHECK: linalg.generic {{.*}} ins(%[[A]], {{.*}} outs(%[[G]] :
// CHECK: linalg.generic {{.*}} ins(%[[A]], {{.*}} outs(%[[U]] :
// CHECK: scf.yield
// CHECK: linalg.generic {{.*}} ins(%[[LOOP]]#0, %[[LOOP]]#1

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @gate_up(%x: tensor<6x10xf32>, %w0: tensor<5x10xf32>, %w1: tensor<5x10xf32>) -> tensor<6x5xf32> {
    %zero = arith.constant 0.0 : f32
    %ea = tensor.empty() : tensor<6x10xf32>
    %ec = tensor.empty() : tensor<6x5xf32>
    %fill = linalg.fill ins(%zero : f32) outs(%ec : tensor<6x5xf32>) -> tensor<6x5xf32>
    %p = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%x : tensor<6x10xf32>) outs(%ea : tensor<6x10xf32>) {
    ^bb0(%in: f32, %out: f32):
      %0 = arith.negf %in : f32
      linalg.yield %0 : f32
    } -> tensor<6x10xf32>
    %gate = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%p, %w0 : tensor<6x10xf32>, tensor<5x10xf32>) outs(%fill : tensor<6x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.mulf %l, %r : f32
      %1 = arith.addf %out, %0 : f32
      linalg.yield %1 : f32
    } -> tensor<6x5xf32>
    %up = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%p, %w1 : tensor<6x10xf32>, tensor<5x10xf32>) outs(%fill : tensor<6x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.mulf %l, %r : f32
      %1 = arith.addf %out, %0 : f32
      linalg.yield %1 : f32
    } -> tensor<6x5xf32>
    %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%gate, %up : tensor<6x5xf32>, tensor<6x5xf32>) outs(%ec : tensor<6x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.mulf %l, %r : f32
      linalg.yield %0 : f32
    } -> tensor<6x5xf32>
    return %r : tensor<6x5xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_contractions"(%func) : (!transform.any_op) -> !transform.any_op
    %tiled, %loop = "schedule.tile_reduction"(%found) {size = 4 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
