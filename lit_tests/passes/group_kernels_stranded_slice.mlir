// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s

// A row of a concatenation would be a plain read of the part that it lies in. The product reads the whole, too, which is
// no plain read of anything: the concatenation has a kernel of its own, and so has the row.
// CHECK-LABEL: func.func @main
// CHECK: tensor.concat
// CHECK-SAME: mlirc.kernels = array<i64: 2>, mlirc.root = 2 : i64
// CHECK: tensor.extract_slice
// CHECK-SAME: mlirc.kernels = array<i64: 1>, mlirc.root = 1 : i64
// CHECK: linalg.matmul {mlirc.kernels = array<i64: 0>, mlirc.root = 0 : i64}
func.func @main(%x: tensor<1x64xf32>) -> tensor<3x1xf32> {
  %zero = arith.constant 0.0 : f32
  %c = tensor.concat dim(0) %x, %x, %x : (tensor<1x64xf32>, tensor<1x64xf32>, tensor<1x64xf32>) -> tensor<3x64xf32>
  %row = tensor.extract_slice %c[1, 0] [1, 64] [1, 1] : tensor<3x64xf32> to tensor<64xf32>
  %column = tensor.expand_shape %row [[0, 1]] output_shape [64, 1] : tensor<64xf32> into tensor<64x1xf32>
  %y = tensor.empty() : tensor<3x1xf32>
  %f = linalg.fill ins(%zero : f32) outs(%y : tensor<3x1xf32>) -> tensor<3x1xf32>
  %m = linalg.matmul ins(%c, %column : tensor<3x64xf32>, tensor<64x1xf32>) outs(%f : tensor<3x1xf32>) -> tensor<3x1xf32>
  return %m : tensor<3x1xf32>
}
