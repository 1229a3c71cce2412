// RUN: %mlirc-opt %s --pass 'mlirc-dependent-kernels{rows=true}' | %filecheck %s

// Two products read more than 4 MiB of weights of 16 bits: attention, and the product behind it, do not begin early. The latter lets
// the one behind it begin.
// CHECK-LABEL: func.func private @attention_0
// CHECK-NOT: mlirc.dependent
// CHECK-NOT: mlirc.lets_begin
// CHECK-LABEL: func.func private @matmul_0
// CHECK-SAME: mlirc.lets_begin
// CHECK-LABEL: func.func private @matmul_1
// CHECK-SAME: mlirc.dependent, mlirc.given = array<i64: 1>
// CHECK-LABEL: func.func @main
#mk = affine_map<(m, n, k) -> (m, k)>
#nk = affine_map<(m, n, k) -> (n, k)>
#mn = affine_map<(m, n, k) -> (m, n)>
func.func private @attention_0(%x: tensor<1x64xbf16>) -> tensor<1x64xbf16> attributes {mlirc.kernel, mlirc.kind = "attention"} {
  return %x : tensor<1x64xbf16>
}
func.func private @matmul_0(%x: tensor<1x64xbf16>, %w: tensor<40000x64xbf16>) -> tensor<1x40000xbf16>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : bf16
  %e = tensor.empty() : tensor<1x40000xbf16>
  %f = linalg.fill ins(%zero : bf16) outs(%e : tensor<1x40000xbf16>) -> tensor<1x40000xbf16>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x64xbf16>, tensor<40000x64xbf16>) outs(%f : tensor<1x40000xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %s: bf16):
    %m = arith.mulf %a, %b : bf16
    %t = arith.addf %s, %m : bf16
    linalg.yield %t : bf16
  } -> tensor<1x40000xbf16>
  return %p : tensor<1x40000xbf16>
}
func.func private @matmul_1(%x: tensor<1x40000xbf16>, %w: tensor<64x40000xbf16>) -> tensor<1x64xbf16>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : bf16
  %e = tensor.empty() : tensor<1x64xbf16>
  %f = linalg.fill ins(%zero : bf16) outs(%e : tensor<1x64xbf16>) -> tensor<1x64xbf16>
  %p = linalg.generic {indexing_maps = [#mk, #nk, #mn], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x40000xbf16>, tensor<64x40000xbf16>) outs(%f : tensor<1x64xbf16>) {
  ^bb0(%a: bf16, %b: bf16, %s: bf16):
    %m = arith.mulf %a, %b : bf16
    %t = arith.addf %s, %m : bf16
    linalg.yield %t : bf16
  } -> tensor<1x64xbf16>
  return %p : tensor<1x64xbf16>
}
func.func @main(%x: tensor<1x64xbf16>, %u: tensor<40000x64xbf16> {mlirc.kind = "weight"},
    %w: tensor<64x40000xbf16> {mlirc.kind = "weight"}) -> tensor<1x64xbf16> {
  %a = call @attention_0(%x) : (tensor<1x64xbf16>) -> tensor<1x64xbf16>
  %b = call @matmul_0(%a, %u) : (tensor<1x64xbf16>, tensor<40000x64xbf16>) -> tensor<1x40000xbf16>
  %c = call @matmul_1(%b, %w) : (tensor<1x40000xbf16>, tensor<64x40000xbf16>) -> tensor<1x64xbf16>
  return %c : tensor<1x64xbf16>
}
