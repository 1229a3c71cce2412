// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// A transpose that moves nothing is a view for the kernel that reads it; what a function returns is a copy.
// CHECK-LABEL: func.func @main
// CHECK: %[[X:.*]] = tensor.collapse_shape %arg0
// CHECK: %[[Y:.*]] = tensor.expand_shape %[[X]]
// CHECK: call @generic_0(%[[Y]]
// CHECK: call @elementwise_1
// CHECK-NOT: call
// CHECK: return
// CHECK-NOT: @elementwise_0

func.func @main(%x: tensor<1x4x1x6xf32>, %y: tensor<5x1xf32>) -> (tensor<1x1x2x5xf32>, tensor<1x5xf32>) {
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : tensor<1x1x4x6xf32>
  %t = linalg.transpose ins(%x : tensor<1x4x1x6xf32>) outs(%e0 : tensor<1x1x4x6xf32>) permutation = [0, 2, 1, 3]
  %window = tensor.empty() : tensor<3x2xf32>
  %e1 = tensor.empty() : tensor<1x1x2x5xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e1 : tensor<1x1x2x5xf32>) -> tensor<1x1x2x5xf32>
  %p = linalg.pooling_nchw_max ins(%t, %window : tensor<1x1x4x6xf32>, tensor<3x2xf32>)
      outs(%f : tensor<1x1x2x5xf32>) -> tensor<1x1x2x5xf32>
  %e2 = tensor.empty() : tensor<1x5xf32>
  %u = linalg.transpose ins(%y : tensor<5x1xf32>) outs(%e2 : tensor<1x5xf32>) permutation = [1, 0]
  return %p, %u : tensor<1x1x2x5xf32>, tensor<1x5xf32>
}
