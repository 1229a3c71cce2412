// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'reduction:rows=2,warps=4' | %filecheck %s --check-prefix=KNOBS

// Softmax: a long row takes a block of its own, whole, so that x is read once.

// CHECK-LABEL: func.func private @reduction_0
// CHECK-SAME: mlirc.warps = 4 : i32
// CHECK: scf.forall (%[[I:.*]]) in (64)
// CHECK: tensor.extract_slice %arg0[%[[I]], 0] [1, 2048]
// CHECK: arith.maximumf
// CHECK: math.exp
// CHECK: arith.addf
// CHECK: arith.divf
// CHECK: tensor.parallel_insert_slice
// KNOBS: mlirc.warps = 4 : i32
// KNOBS: scf.forall {{.*}} in (32)
// KNOBS: tensor.extract_slice {{.*}} [2, 2048]

#id = affine_map<(a, b) -> (a, b)>
#row = affine_map<(a, b) -> (a)>
func.func private @reduction_0(%x: tensor<64x2048xf32>) -> tensor<64x2048xf32>
    attributes {mlirc.kernel, mlirc.kind = "reduction"} {
  %lowest = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x2048xf32>
  %er = tensor.empty() : tensor<64xf32>
  %f0 = linalg.fill ins(%lowest : f32) outs(%er : tensor<64xf32>) -> tensor<64xf32>
  %top = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<64x2048xf32>) outs(%f0 : tensor<64xf32>) {
  ^bb0(%v: f32, %out: f32):
    %0 = arith.maximumf %v, %out : f32
    linalg.yield %0 : f32
  } -> tensor<64xf32>
  %p = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %top : tensor<64x2048xf32>, tensor<64xf32>) outs(%e : tensor<64x2048xf32>) {
  ^bb0(%v: f32, %m: f32, %out: f32):
    %0 = arith.subf %v, %m : f32
    %1 = math.exp %0 : f32
    linalg.yield %1 : f32
  } -> tensor<64x2048xf32>
  %f1 = linalg.fill ins(%zero : f32) outs(%er : tensor<64xf32>) -> tensor<64xf32>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%p : tensor<64x2048xf32>) outs(%f1 : tensor<64xf32>) {
  ^bb0(%v: f32, %out: f32):
    %0 = arith.addf %v, %out : f32
    linalg.yield %0 : f32
  } -> tensor<64xf32>
  %r = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%p, %sum : tensor<64x2048xf32>, tensor<64xf32>) outs(%e : tensor<64x2048xf32>) {
  ^bb0(%v: f32, %s: f32, %out: f32):
    %0 = arith.divf %v, %s : f32
    linalg.yield %0 : f32
  } -> tensor<64x2048xf32>
  return %r : tensor<64x2048xf32>
}
