// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// A product reads its operands in memory: a constant one gets a kernel of its own, and the product keeps its epilogue.
// CHECK-LABEL: func.func @main
// CHECK-NEXT: %[[Z:.*]] = call @elementwise_0() : () -> tensor<3x7xf32>
// CHECK-NEXT: %[[R:.*]] = call @matmul_0(%[[Z]], %arg0, %arg1)
// CHECK-NEXT: return %[[R]]
// CHECK: func.func private @matmul_0
// CHECK: arith.addf
func.func @main(%w: tensor<7x21xf32>, %b: tensor<3x21xf32>) -> tensor<3x21xf32> {
  %x = arith.constant dense<0.0> : tensor<3x7xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x21xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<3x21xf32>) -> tensor<3x21xf32>
  %m = linalg.matmul ins(%x, %w : tensor<3x7xf32>, tensor<7x21xf32>) outs(%f : tensor<3x21xf32>) -> tensor<3x21xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>,
      affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%m, %b : tensor<3x21xf32>, tensor<3x21xf32>) outs(%e : tensor<3x21xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<3x21xf32>
  return %r : tensor<3x21xf32>
}
