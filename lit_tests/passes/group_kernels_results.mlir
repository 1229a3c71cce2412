// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s

// A result that does not depend on a parallel loop gets an op of its own, over its own loops. One that is folded from the
// input stays, and so does one whose missing loop is a reduction alone.
// CHECK-LABEL: func.func @main
// CHECK: %[[SIZES:.*]] = linalg.generic {indexing_maps = [#{{.*}}], iterator_types = ["parallel"]} outs(%{{.*}} : tensor<3xf32>)
// CHECK: linalg.index 0
// CHECK: %[[SUMS:.*]] = linalg.generic {{.*}} iterator_types = ["parallel", "parallel", "reduction"]} ins(%arg0 : tensor<4x3x5xf32>) outs(%{{.*}} : tensor<4x3xf32>)
// CHECK: linalg.index 1
// CHECK: %[[BOTH:.*]]:2 = linalg.generic {{.*}} outs(%{{.*}}, %{{.*}} : tensor<4x3xf32>, tensor<4x3xf32>)
// CHECK: return %[[SUMS]], %[[SIZES]], %[[BOTH]]#0, %[[BOTH]]#1
#all = affine_map<(b, i, k) -> (b, i, k)>
#out = affine_map<(b, i, k) -> (b, i)>
#size = affine_map<(b, i, k) -> (i)>
func.func @main(%x: tensor<4x3x5xf32>) -> (tensor<4x3xf32>, tensor<3xf32>, tensor<4x3xf32>, tensor<4x3xf32>) {
  %zero = arith.constant 0.0 : f32
  %c2 = arith.constant 2 : index
  %e0 = tensor.empty() : tensor<4x3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e0 : tensor<4x3xf32>) -> tensor<4x3xf32>
  %e1 = tensor.empty() : tensor<3xf32>
  %r:2 = linalg.generic {indexing_maps = [#all, #out, #size], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x : tensor<4x3x5xf32>) outs(%f, %e1 : tensor<4x3xf32>, tensor<3xf32>) {
  ^bb0(%in: f32, %acc: f32, %size: f32):
    %i = linalg.index 1 : index
    %n = arith.addi %i, %c2 : index
    %j = arith.index_cast %n : index to i64
    %s = arith.sitofp %j : i64 to f32
    %m = arith.mulf %in, %s : f32
    %a = arith.addf %m, %acc : f32
    linalg.yield %a, %s : f32, f32
  } -> (tensor<4x3xf32>, tensor<3xf32>)
  %b:2 = linalg.generic {indexing_maps = [#all, #out, #out], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x : tensor<4x3x5xf32>) outs(%f, %e0 : tensor<4x3xf32>, tensor<4x3xf32>) {
  ^bb0(%in: f32, %acc: f32, %size: f32):
    %i = linalg.index 1 : index
    %j = arith.index_cast %i : index to i64
    %s = arith.sitofp %j : i64 to f32
    %a = arith.addf %in, %acc : f32
    linalg.yield %a, %s : f32, f32
  } -> (tensor<4x3xf32>, tensor<4x3xf32>)
  return %r#0, %r#1, %b#0, %b#1 : tensor<4x3xf32>, tensor<3xf32>, tensor<4x3xf32>, tensor<4x3xf32>
}
