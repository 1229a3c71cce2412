// RUN: %mlirc-opt %s --script 'matmul:mma=wgmma' --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: %mlirc-opt %s --script 'matmul:mma=wgmma' > %t.tiles.mlir
// RUN: not %mlirc-opt %t.tiles.mlir --target sm_80 --pass mlirc-async --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=OLD

// An instruction asks the target first: LLVM would end the process over one that it does not have.

// CHECK: nvvm.wgmma.mma_async
// OLD: error: {{.*}}kernel matmul_0: mlirc.mma = wgmma: sm_80 has no wgmma: use mma
func.func private @matmul_0(%x: tensor<128x192xbf16>, %w: tensor<128x192xbf16>) -> tensor<128x128xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<128x128xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<128x128xf32>) -> tensor<128x128xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<128x192xbf16>, tensor<128x192xbf16>) outs(%f : tensor<128x128xf32>) {
  ^bb0(%a: bf16, %b: bf16, %c: f32):
    %0 = arith.extf %a : bf16 to f32
    %1 = arith.extf %b : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %c, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<128x128xf32>
  return %r : tensor<128x128xf32>
}
