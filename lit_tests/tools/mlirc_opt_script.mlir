// RUN: %mlirc-opt %s --script elementwise | %filecheck %s
// RUN: not %mlirc-opt %s --script matmul 2>&1 | %filecheck %s --check-prefix=WRONG

// A script's name alone means that script for every kernel.
// CHECK: scf.forall
// WRONG: error: {{.*}}script 'matmul' cannot schedule kernel 'elementwise_0' of kind 'elementwise'
func.func private @elementwise_0(%a: tensor<8x32xf32>) -> tensor<8x32xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<8x32xf32>
  %r = linalg.exp ins(%a : tensor<8x32xf32>) outs(%e : tensor<8x32xf32>) -> tensor<8x32xf32>
  return %r : tensor<8x32xf32>
}
