// RUN: %mlirc-opt %s --pass 'mlirc-dependent-kernels{rows=true}' | %filecheck %s

// Two products read more than 4 MiB of f32 weights: all kernels begin early, what is behind attention once attention's
// first copies are on their way.
// CHECK-LABEL: func.func private @attention_0
// CHECK-SAME: mlirc.dependent, mlirc.given = array<i64: 0>, {{.*}}mlirc.lets_begin_late
// CHECK-LABEL: func.func private @matmul_0
// CHECK-NOT: mlirc.lets_begin
// CHECK-SAME: mlirc.dependent, mlirc.given = array<i64: 1>
// CHECK-LABEL: func.func private @matmul_1
// CHECK-SAME: mlirc.dependent, mlirc.given = array<i64: 1>
// CHECK-LABEL: func.func @main
#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @attention_0(%x: tensor<1x64xf32>) -> tensor<1x64xf32> attributes {mlirc.kernel, mlirc.kind = "attention"} {
  return %x : tensor<1x64xf32>
}
func.func private @matmul_0(%x: tensor<1x64xf32>, %w: tensor<20000x64xf32>) -> tensor<1x20000xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x20000xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x20000xf32>) -> tensor<1x20000xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x64xf32>, tensor<20000x64xf32>) outs(%f : tensor<1x20000xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<1x20000xf32>
  return %p : tensor<1x20000xf32>
}
func.func private @matmul_1(%x: tensor<1x20000xf32>, %w: tensor<64x20000xf32>) -> tensor<1x64xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x64xf32>) -> tensor<1x64xf32>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x20000xf32>, tensor<64x20000xf32>) outs(%f : tensor<1x64xf32>) {
  ^bb0(%a: f32, %b: f32, %s: f32):
    %m = arith.mulf %a, %b : f32
    %t = arith.addf %s, %m : f32
    linalg.yield %t : f32
  } -> tensor<1x64xf32>
  return %p : tensor<1x64xf32>
}
func.func @main(%x: tensor<1x64xf32>, %u: tensor<20000x64xf32> {mlirc.kind = "weight"},
    %w: tensor<64x20000xf32> {mlirc.kind = "weight"}) -> tensor<1x64xf32> {
  %a = call @attention_0(%x) : (tensor<1x64xf32>) -> tensor<1x64xf32>
  %b = call @matmul_0(%a, %u) : (tensor<1x64xf32>, tensor<20000x64xf32>) -> tensor<1x20000xf32>
  %c = call @matmul_1(%b, %w) : (tensor<1x20000xf32>, tensor<64x20000xf32>) -> tensor<1x64xf32>
  return %c : tensor<1x64xf32>
}
