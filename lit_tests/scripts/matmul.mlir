// RUN: %mlirc-opt %s --script 'matmul:block_m=64,block_n=32,block_k=16,warps_m=2,warps_n=1,stages=3' | %filecheck %s
// RUN: not %mlirc-opt %s --script 'matmul:block_q=1' 2>&1 | %filecheck %s --check-prefix=UNKNOWN

// UNKNOWN: error: --schedule 'matmul:block_q=1': script 'matmul' has no knob 'block_q': it has block_m, block_n,

// The row of blocks is the fastest id; the fill, the loop over k and the epilogue are one block program.

// CHECK-LABEL: func.func private @matmul_0
// CHECK-SAME: mlirc.warps = 2 : i32
// CHECK: scf.forall (%[[N:.*]], %[[M:.*]]) in (4, 2)
// CHECK: %[[COL:.*]] = affine.apply #{{.*}}(%[[N]])
// CHECK: %[[ROW:.*]] = affine.apply #{{.*}}(%[[M]])
// CHECK: %[[ROWS:.*]] = affine.min #{{.*}}(%[[ROW]])
// CHECK: %[[FILL:.*]] = linalg.fill
// CHECK: %[[ACC:.*]] = scf.for %[[K:.*]] = %c0 to %c48 step %c16 iter_args(%{{.*}} = %[[FILL]])
// CHECK: tensor.extract_slice %arg0[%[[ROW]], %[[K]]] [%[[ROWS]], 16]
// CHECK: tensor.extract_slice %arg1[%[[COL]], %[[K]]] [32, 16]
// CHECK: linalg.generic
// CHECK-SAME: mlirc.mma = "mma"
// CHECK-SAME: mlirc.warp_grid = array<i64: 2, 1>
// CHECK: mlirc.stages = 3 : i32
// CHECK: linalg.generic {{.*}} ins(%[[ACC]]
// CHECK: arith.truncf
// CHECK: scf.forall.in_parallel

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
#col = affine_map<(m, n) -> (n)>
func.func private @matmul_0(%x: tensor<100x48xbf16>, %w: tensor<128x48xbf16>, %bias: tensor<128xf32>) -> tensor<100x128xbf16>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<100x128xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<100x128xf32>) -> tensor<100x128xf32>
  %p = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<100x48xbf16>, tensor<128x48xbf16>) outs(%f : tensor<100x128xf32>) {
  ^bb0(%l: bf16, %r: bf16, %out: f32):
    %0 = arith.extf %l : bf16 to f32
    %1 = arith.extf %r : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %out, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<100x128xf32>
  %eb = tensor.empty() : tensor<100x128xbf16>
  %r = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel"]}
      ins(%p, %bias : tensor<100x128xf32>, tensor<128xf32>) outs(%eb : tensor<100x128xbf16>) {
  ^bb0(%v: f32, %c: f32, %out: bf16):
    %0 = arith.addf %v, %c : f32
    %1 = arith.truncf %0 : f32 to bf16
    linalg.yield %1 : bf16
  } -> tensor<100x128xbf16>
  return %r : tensor<100x128xbf16>
}
