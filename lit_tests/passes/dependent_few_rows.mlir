// RUN: %mlirc-opt %s --pass 'mlirc-dependent-kernels{rows=true}' | %filecheck %s

// Two products of 16-bit floats with 3 and with 16 rows begin early by themselves.
// CHECK: func.func private @matmul_0{{.*}} attributes {mlirc.dependent, mlirc.given = array<i64: 0, 1>
// CHECK: func.func private @matmul_1{{.*}} attributes {mlirc.dependent, mlirc.given = array<i64: 0, 1>
// CHECK: func.func @main
#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%x: tensor<3x64xbf16>, %w: tensor<48x64xbf16>) -> tensor<3x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<3x48xf32>) -> tensor<3x48xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<3x64xbf16>, tensor<48x64xbf16>) outs(%f : tensor<3x48xf32>) {
  ^bb0(%a: bf16, %b: bf16, %s: f32):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %b : bf16 to f32
    %m = arith.mulf %u, %v : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<3x48xf32>
  return %p : tensor<3x48xf32>
}
func.func private @matmul_1(%x: tensor<16x64xbf16>, %w: tensor<48x64xbf16>) -> tensor<16x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x48xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<16x48xf32>) -> tensor<16x48xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<16x64xbf16>, tensor<48x64xbf16>) outs(%f : tensor<16x48xf32>) {
  ^bb0(%a: bf16, %b: bf16, %s: f32):
    %u = arith.extf %a : bf16 to f32
    %v = arith.extf %b : bf16 to f32
    %m = arith.mulf %u, %v : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<16x48xf32>
  return %p : tensor<16x48xf32>
}
func.func @main(%x: tensor<3x64xbf16>, %y: tensor<16x64xbf16>, %w: tensor<48x64xbf16> {mlirc.kind = "weight"})
    -> (tensor<3x48xf32>, tensor<16x48xf32>) {
  %a = call @matmul_0(%x, %w) : (tensor<3x64xbf16>, tensor<48x64xbf16>) -> tensor<3x48xf32>
  %b = call @matmul_1(%y, %w) : (tensor<16x64xbf16>, tensor<48x64xbf16>) -> tensor<16x48xf32>
  return %a, %b : tensor<3x48xf32>, tensor<16x48xf32>
}
