// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s

// A product takes what repeats rows as it was, but not what repeats elements along the dimension that it sums: of two
// such operands none would tell how many there are.
// CHECK-LABEL: func.func @main
// CHECK: linalg.broadcast
// CHECK-SAME: mlirc.kernels = array<i64: 1>, mlirc.root = 1 : i64
// CHECK: linalg.broadcast
// CHECK-SAME: {mlirc.kernels = array<i64: 0>}
// CHECK: linalg.matmul {mlirc.kernels = array<i64: 0>, mlirc.root = 0 : i64}
func.func @main(%x: tensor<32xf32>, %w: tensor<64xf32>) -> tensor<32x48xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x64xf32>
  %inner = linalg.broadcast ins(%x : tensor<32xf32>) outs(%e : tensor<32x64xf32>) dimensions = [1]
  %g = tensor.empty() : tensor<64x48xf32>
  %columns = linalg.broadcast ins(%w : tensor<64xf32>) outs(%g : tensor<64x48xf32>) dimensions = [1]
  %y = tensor.empty() : tensor<32x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%y : tensor<32x48xf32>) -> tensor<32x48xf32>
  %m = linalg.matmul ins(%inner, %columns : tensor<32x64xf32>, tensor<64x48xf32>) outs(%f : tensor<32x48xf32>)
      -> tensor<32x48xf32>
  return %m : tensor<32x48xf32>
}
