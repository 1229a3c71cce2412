// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Slices of what stands in front of a block program come first, in their order, with the numbers that they need; what is
// computed follows.

// CHECK-LABEL: func.func @blocks
// CHECK: scf.forall (%[[I:.*]]) in (4)
// CHECK-NEXT: tensor.extract_slice %arg0[0] [8]
// CHECK-NEXT: %[[AT:.*]] = affine.apply
// CHECK-NEXT: tensor.extract_slice %arg1[%[[AT]]] [2]
// CHECK-NEXT: tensor.empty
// CHECK-NEXT: linalg.fill
// CHECK-NEXT: linalg.generic
// CHECK: linalg.generic

#id = affine_map<(d0) -> (d0)>
module attributes {transform.with_named_sequence} {
  func.func @blocks(%x: tensor<8xf32>, %w: tensor<8xf32>) -> tensor<8xf32> {
    %zero = arith.constant 0.0 : f32
    %out = tensor.empty() : tensor<8xf32>
    %r = scf.forall (%i) in (4) shared_outs(%o = %out) -> (tensor<8xf32>) {
      %e = tensor.empty() : tensor<f32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<f32>) -> tensor<f32>
      %xs = tensor.extract_slice %x[0] [8] [1] : tensor<8xf32> to tensor<8xf32>
      %sum = linalg.generic {indexing_maps = [#id, affine_map<(d0) -> ()>], iterator_types = ["reduction"]}
          ins(%xs : tensor<8xf32>) outs(%f : tensor<f32>) {
      ^bb0(%a: f32, %s: f32):
        %t = arith.addf %s, %a : f32
        linalg.yield %t : f32
      } -> tensor<f32>
      %at = affine.apply affine_map<(d0) -> (d0 * 2)>(%i)
      %ws = tensor.extract_slice %w[%at] [2] [1] : tensor<8xf32> to tensor<2xf32>
      %e2 = tensor.empty() : tensor<2xf32>
      %y = linalg.generic {indexing_maps = [#id, affine_map<(d0) -> ()>, #id], iterator_types = ["parallel"]}
          ins(%ws, %sum : tensor<2xf32>, tensor<f32>) outs(%e2 : tensor<2xf32>) {
      ^bb0(%a: f32, %b: f32, %c: f32):
        %t = arith.mulf %a, %b : f32
        linalg.yield %t : f32
      } -> tensor<2xf32>
      scf.forall.in_parallel {
        tensor.parallel_insert_slice %y into %o[%at] [2] [1] : tensor<2xf32> into tensor<8xf32>
      }
    } {mapping = [#gpu.block<x>]}
    return %r : tensor<8xf32>
  }
  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {
    %forall = transform.structured.match ops{["scf.forall"]} in %m : (!transform.any_op) -> !transform.any_op
    "schedule.read_first"(%forall) : (!transform.any_op) -> ()
    transform.yield
  }
}
