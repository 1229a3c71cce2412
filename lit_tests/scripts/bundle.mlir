// RUN: %mlirc-opt %s --script 'bundle:threads=96' | %filecheck %s
// RUN: %mlirc-opt %s --script auto --pass mlirc-loops | %filecheck %s --check-prefix=LAUNCH

// CHECK-LABEL: func.func private @bundle_0
// CHECK-SAME: mlirc.lowering = "loops"
// CHECK-SAME: mlirc.threads = 96 : i32

// LAUNCH: gpu.func @bundle_0_0
// LAUNCH-SAME: known_block_size = array<i32: 128, 1, 1>
// LAUNCH-NOT: gpu.func
// LAUNCH: gpu.launch_func @bundle_0_gpu::@bundle_0_0 blocks in (%c3,
func.func private @bundle_0(%x: tensor<129xf32>, %y: tensor<7x2xi64>) -> (tensor<129xf32>, tensor<7x2xi64>)
    attributes {mlirc.kernel, mlirc.kind = "bundle"} {
  %e = tensor.empty() : tensor<129xf32>
  %f = tensor.empty() : tensor<7x2xi64>
  %g = linalg.abs ins(%x : tensor<129xf32>) outs(%e : tensor<129xf32>) -> tensor<129xf32>
  %h = linalg.add ins(%y, %y : tensor<7x2xi64>, tensor<7x2xi64>) outs(%f : tensor<7x2xi64>) -> tensor<7x2xi64>
  return %g, %h : tensor<129xf32>, tensor<7x2xi64>
}
