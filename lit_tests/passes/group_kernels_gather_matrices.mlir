// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// A map that chooses a matrix for each group is computed in the kernels of the products that read it, as the matrices
// lie, also through a transpose. Without the mark it has a kernel of its own.

#group = affine_map<(g, n, k) -> (g)>
#id = affine_map<(g, n, k) -> (g, n, k)>

// CHECK-LABEL: func.func @main
// CHECK: call @gather_0(%arg2, %arg1)
// CHECK: call @matmul_0(%arg0, %arg2, %arg1) : (tensor<4x16x48xf32>, tensor<4xi64>, tensor<3x80x48xf32>)
// CHECK: call @matmul_1
// CHECK-LABEL: func.func private @gather_0
// CHECK-LABEL: func.func private @matmul_0(
// CHECK: linalg.generic {{.*}} ins(%arg1 : tensor<4xi64>) outs({{.*}} : tensor<4x40x48xf32>) attrs = {mlirc.gather_matrices}
// CHECK: arith.maxsi {{.*}} : i64
// CHECK: arith.minsi {{.*}} {mlirc.index_below = 3 : i64}
// CHECK: tensor.extract %arg2
// CHECK: arith.select
// CHECK: linalg.generic {{.*}}"reduction"]} ins(%arg0, {{.*}} : tensor<4x16x48xf32>, tensor<4x40x48xf32>)
// CHECK-LABEL: func.func private @matmul_1(%arg0: tensor<4x16x48xf32>, %arg1: tensor<4x40x48xf32>)
func.func @main(%x: tensor<4x16x48xf32>, %w: tensor<3x80x48xf32>, %table: tensor<4xi64>)
    -> (tensor<4x16x40xf32>, tensor<4x16x40xf32>) {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : i64
  %c40 = arith.constant 40 : index
  %e = tensor.empty() : tensor<4x40x48xf32>
  %a = linalg.generic {indexing_maps = [#group, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%table : tensor<4xi64>) outs(%e : tensor<4x40x48xf32>) attrs = {mlirc.gather_matrices} {
  ^bb0(%in: i64, %out: f32):
    %none = arith.cmpi slt, %in, %c0 : i64
    %some = arith.maxsi %in, %c0 : i64
    %m = arith.index_cast %some : i64 to index
    %i = linalg.index 1 : index
    %n = arith.addi %i, %c40 : index
    %k = linalg.index 2 : index
    %v = tensor.extract %w[%m, %n, %k] : tensor<3x80x48xf32>
    %y = arith.select %none, %zero, %v : f32
    linalg.yield %y : f32
  } -> tensor<4x40x48xf32>
  %b = linalg.generic {indexing_maps = [#group, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%table : tensor<4xi64>) outs(%e : tensor<4x40x48xf32>) {
  ^bb0(%in: i64, %out: f32):
    %m = arith.index_cast %in : i64 to index
    %n = linalg.index 1 : index
    %k = linalg.index 2 : index
    %v = tensor.extract %w[%m, %n, %k] : tensor<3x80x48xf32>
    linalg.yield %v : f32
  } -> tensor<4x40x48xf32>
  %et = tensor.empty() : tensor<4x48x40xf32>
  %t = linalg.transpose ins(%a : tensor<4x40x48xf32>) outs(%et : tensor<4x48x40xf32>) permutation = [0, 2, 1]
  %u = linalg.transpose ins(%b : tensor<4x40x48xf32>) outs(%et : tensor<4x48x40xf32>) permutation = [0, 2, 1]
  %r = tensor.empty() : tensor<4x16x40xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r : tensor<4x16x40xf32>) -> tensor<4x16x40xf32>
  %y = linalg.batch_matmul ins(%x, %t : tensor<4x16x48xf32>, tensor<4x48x40xf32>) outs(%f : tensor<4x16x40xf32>) -> tensor<4x16x40xf32>
  %z = linalg.batch_matmul ins(%x, %u : tensor<4x16x48xf32>, tensor<4x48x40xf32>) outs(%f : tensor<4x16x40xf32>) -> tensor<4x16x40xf32>
  return %y, %z : tensor<4x16x40xf32>, tensor<4x16x40xf32>
}
