// RUN: %mlirc-opt %s --script 'generic:threads=96' | %filecheck %s
// RUN: %mlirc-opt %s --script auto --pass 'mlirc-loops{threads=64}' | %filecheck %s --check-prefix=LAUNCH

// A convolution becomes a generic, whose sums are short enough to stay whole, and is marked for mlirc-loops.
// CHECK-LABEL: func.func private @generic_0
// CHECK-SAME: mlirc.lowering = "loops"
// CHECK-SAME: mlirc.threads = 96 : i32
// CHECK: linalg.generic
// CHECK-SAME: "parallel", "parallel", "parallel", "reduction", "reduction"
// CHECK-NOT: linalg.generic

// LAUNCH: gpu.func @generic_0_0
// LAUNCH-SAME: known_block_size = array<i32: 64, 1, 1>
// LAUNCH: func.func private @generic_0
// LAUNCH: gpu.launch_func
// LAUNCH-NOT: gpu.launch_func
func.func private @generic_0(%x: tensor<1x18x4xf32>, %w: tensor<3x4x8xf32>) -> tensor<1x16x8xf32>
    attributes {mlirc.kernel, mlirc.kind = "generic"} {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x16x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x16x8xf32>) -> tensor<1x16x8xf32>
  %c = linalg.conv_1d_nwc_wcf {dilations = dense<1> : vector<1xi64>, strides = dense<1> : vector<1xi64>}
      ins(%x, %w : tensor<1x18x4xf32>, tensor<3x4x8xf32>) outs(%f : tensor<1x16x8xf32>) -> tensor<1x16x8xf32>
  return %c : tensor<1x16x8xf32>
}
