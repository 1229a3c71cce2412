// RUN: not %mlirc-opt %s --pass mlirc-distribute 2>&1 | %filecheck %s

// CHECK: error: mlirc-distribute takes kernels without their callers, and @main calls @k
func.func private @k(%x: tensor<4xf32>) -> tensor<4xf32> attributes {mlirc.kernel} {
  return %x : tensor<4xf32>
}
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = call @k(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
