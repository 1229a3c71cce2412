// RUN: %mlirc-opt %s --pass 'mlirc-dependent-kernels{rows=true}' | %filecheck %s

// Of f32 one product is with one row, the other with two: nothing begins early by itself.
// CHECK: func.func private @matmul_0
// CHECK-NOT: mlirc.dependent
// CHECK: func.func @main
#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%x: tensor<1x64xf32>, %w: tensor<48x64xf32>) -> tensor<1x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x48xf32>) -> tensor<1x48xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x64xf32>, tensor<48x64xf32>) outs(%f : tensor<1x48xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<1x48xf32>
  return %p : tensor<1x48xf32>
}
func.func private @matmul_1(%x: tensor<2x64xf32>, %w: tensor<48x64xf32>) -> tensor<2x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x48xf32>) -> tensor<2x48xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<2x64xf32>, tensor<48x64xf32>) outs(%f : tensor<2x48xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<2x48xf32>
  return %p : tensor<2x48xf32>
}
func.func @main(%x: tensor<1x64xf32>, %y: tensor<2x64xf32>, %w: tensor<48x64xf32> {mlirc.kind = "weight"})
    -> (tensor<1x48xf32>, tensor<2x48xf32>) {
  %a = call @matmul_0(%x, %w) : (tensor<1x64xf32>, tensor<48x64xf32>) -> tensor<1x48xf32>
  %b = call @matmul_1(%y, %w) : (tensor<2x64xf32>, tensor<48x64xf32>) -> tensor<2x48xf32>
  return %a, %b : tensor<1x48xf32>, tensor<2x48xf32>
}
