// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script reduction:blocks=4,warps=16 | %filecheck %s --check-prefix=KNOBS
// RUN: %mlirc-opt %s --target sm_80 --script auto | %filecheck %s --check-prefix=SM80

// Three long rows: a cluster takes each. A target without clusters has a block for each.

// CHECK-LABEL: func.func private @reduction_0
// CHECK-SAME: mlirc.warps = 8 : i32
// CHECK: scf.forall {{.*}} in (3)
// CHECK: tensor.extract_slice {{.*}} [1, 20000]
// CHECK: mlirc.spread = 8
// KNOBS: mlirc.warps = 16 : i32
// KNOBS: mlirc.spread = 4
// SM80: scf.forall {{.*}} in (3)
// SM80-NOT: mlirc.spread

func.func private @reduction_0(%x: tensor<3x20000xf32>) -> tensor<3xf32> attributes {mlirc.kernel, mlirc.kind = "reduction"} {
  %lowest = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<3xf32>
  %f = linalg.fill ins(%lowest : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  %top = linalg.generic {indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<3x20000xf32>) outs(%f : tensor<3xf32>) {
  ^bb0(%v: f32, %out: f32):
    %0 = arith.maximumf %v, %out : f32
    linalg.yield %0 : f32
  } -> tensor<3xf32>
  return %top : tensor<3xf32>
}
