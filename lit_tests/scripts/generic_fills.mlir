// RUN: %mlirc-opt %s --script auto | %filecheck %s

// A kernel that only fills has no op that a tile could start from.
// CHECK-LABEL: func.func private @elementwise_0
// CHECK-SAME: mlirc.lowering = "loops"
func.func private @elementwise_0() -> tensor<3xf32> attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<3xf32>) -> tensor<3xf32>
  return %f : tensor<3xf32>
}
