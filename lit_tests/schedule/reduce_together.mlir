// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// A sum and a maximum that do not need each other stand in front of what reads the first one, in a loop, too.

// CHECK-LABEL: func.func @two
// CHECK: arith.addf
// CHECK: arith.maximumf
// CHECK: arith.mulf
// CHECK: scf.for
// CHECK: arith.maximumf
// CHECK: arith.addf
// CHECK: arith.divf
// CHECK: scf.yield
// CHECK: tensor.parallel_insert_slice

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#one = affine_map<(d0) -> (d0)>
module attributes {transform.with_named_sequence} {
  func.func @two(%x: tensor<1x8xf32>, %y: tensor<1x8xf32>) -> tensor<1xf32> {
    %zero = arith.constant 0.0 : f32
    %i0 = arith.constant 0 : index
    %i1 = arith.constant 1 : index
    %i4 = arith.constant 4 : index
    %out = tensor.empty() : tensor<1xf32>
    %r = scf.forall (%b) in (1) shared_outs(%o = %out) -> (tensor<1xf32>) {
      %e = tensor.empty() : tensor<1xf32>
      %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1xf32>) -> tensor<1xf32>
      %xs = tensor.extract_slice %x[0, 0] [1, 8] [1, 1] : tensor<1x8xf32> to tensor<1x8xf32>
      %s = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%xs : tensor<1x8xf32>) outs(%f : tensor<1xf32>) {
      ^bb0(%a: f32, %c: f32):
        %v = arith.addf %a, %c : f32
        linalg.yield %v : f32
      } -> tensor<1xf32>
      %t = linalg.generic {indexing_maps = [#one, #one], iterator_types = ["parallel"]}
          ins(%s : tensor<1xf32>) outs(%e : tensor<1xf32>) {
      ^bb0(%a: f32, %c: f32):
        %v = arith.mulf %a, %a : f32
        linalg.yield %v : f32
      } -> tensor<1xf32>
      %ys = tensor.extract_slice %y[0, 0] [1, 8] [1, 1] : tensor<1x8xf32> to tensor<1x8xf32>
      %m = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
          ins(%ys : tensor<1x8xf32>) outs(%f : tensor<1xf32>) {
      ^bb0(%a: f32, %c: f32):
        %v = arith.maximumf %a, %c : f32
        linalg.yield %v : f32
      } -> tensor<1xf32>
      %l = scf.for %i = %i0 to %i4 step %i1 iter_args(%k = %t) -> (tensor<1xf32>) {
        %n = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
            ins(%ys : tensor<1x8xf32>) outs(%k : tensor<1xf32>) {
        ^bb0(%a: f32, %c: f32):
          %v = arith.maximumf %a, %c : f32
          linalg.yield %v : f32
        } -> tensor<1xf32>
        %d = linalg.generic {indexing_maps = [#one, #one, #one], iterator_types = ["parallel"]}
            ins(%n, %m : tensor<1xf32>, tensor<1xf32>) outs(%e : tensor<1xf32>) {
        ^bb0(%a: f32, %g: f32, %c: f32):
          %v = arith.divf %a, %g : f32
          linalg.yield %v : f32
        } -> tensor<1xf32>
        %p = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
            ins(%xs : tensor<1x8xf32>) outs(%f : tensor<1xf32>) {
        ^bb0(%a: f32, %c: f32):
          %v = arith.addf %a, %c : f32
          linalg.yield %v : f32
        } -> tensor<1xf32>
        %q = linalg.generic {indexing_maps = [#one, #one, #one], iterator_types = ["parallel"]}
            ins(%d, %p : tensor<1xf32>, tensor<1xf32>) outs(%e : tensor<1xf32>) {
        ^bb0(%a: f32, %g: f32, %c: f32):
          %v = arith.subf %a, %g : f32
          linalg.yield %v : f32
        } -> tensor<1xf32>
        scf.yield %q : tensor<1xf32>
      }
      scf.forall.in_parallel {
        tensor.parallel_insert_slice %l into %o[0] [1] [1] : tensor<1xf32> into tensor<1xf32>
      }
    } {mapping = [#gpu.block<x>]}
    return %r : tensor<1xf32>
  }
  transform.named_sequence @__transform_main(%m: !transform.any_op {transform.readonly}) {
    %forall = transform.structured.match ops{["scf.forall"]} in %m : (!transform.any_op) -> !transform.any_op
    "schedule.reduce_together"(%forall) : (!transform.any_op) -> ()
    transform.yield
  }
}
