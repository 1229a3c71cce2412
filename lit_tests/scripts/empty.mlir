// RUN: %mlirc-opt %s --script auto | %filecheck %s

// A result without elements: nothing is computed, and there is nothing to launch.
// CHECK-LABEL: func.func private @elementwise_0
// CHECK-NEXT: %[[E:.*]] = tensor.empty() : tensor<0x3xf32>
// CHECK-NEXT: return %[[E]]
func.func private @elementwise_0(%a: tensor<0x3xf32>) -> tensor<0x3xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise"} {
  %e = tensor.empty() : tensor<0x3xf32>
  %r = linalg.exp ins(%a : tensor<0x3xf32>) outs(%e : tensor<0x3xf32>) -> tensor<0x3xf32>
  return %r : tensor<0x3xf32>
}
