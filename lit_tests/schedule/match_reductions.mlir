// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// `schedule.match_reductions` finds the sum of a block program, not its product.

// CHECK-LABEL: func.func @blocks
// CHECK: linalg.generic
// CHECK-SAME: attrs = {found}
// CHECK: arith.addf
// CHECK-NEXT: linalg.yield
// CHECK-NOT: {found}

module attributes {transform.with_named_sequence} {
  func.func @blocks(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
    %zero = arith.constant 0.0 : f32
    %out = tensor.empty() : tensor<2xf32>
    %r:2 = scf.forall (%i) in (2) shared_outs(%o = %out, %p = %out) -> (tensor<2xf32>, tensor<2xf32>) {
      %e = tensor.empty() : tensor<f32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
      %sum = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>], iterator_types = ["reduction"]}
          ins(%x : tensor<8xf32>) outs(%f : tensor<f32>) {
      ^bb0(%a: f32, %s: f32):
        %t = arith.addf %s, %a : f32
        linalg.yield %t : f32
      } -> tensor<f32>
      %dot = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>],
          iterator_types = ["reduction"]} ins(%x, %y : tensor<8xf32>, tensor<8xf32>) outs(%f : tensor<f32>) {
      ^bb0(%a: f32, %b: f32, %s: f32):
        %u = arith.mulf %a, %b : f32
        %t = arith.addf %s, %u : f32
        linalg.yield %t : f32
      } -> tensor<f32>
      scf.forall.in_parallel {
        tensor.parallel_insert_slice %sum into %o[%i] [1] [1] : tensor<f32> into tensor<2xf32>
        tensor.parallel_insert_slice %dot into %p[%i] [1] [1] : tensor<f32> into tensor<2xf32>
      }
    } {mapping = [#gpu.block<x>]}
    return %r#0, %r#1 : tensor<2xf32>, tensor<2xf32>
  }
  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {
    %forall = transform.structured.match ops{["scf.forall"]} in %m : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_reductions"(%forall) : (!transform.any_op) -> !transform.any_op
    transform.annotate %found "found" : !transform.any_op
    transform.yield
  }
}
