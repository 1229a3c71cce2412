// RUN: %mlirc-opt %s --script auto | %filecheck %s

// One row times a matrix: a block takes one of the matrix's rows, whole, with one
// warp: of rows so long that is faster.

// CHECK-LABEL: func.func private @matmul_0
// CHECK-SAME: mlirc.warps = 1 : i32
// CHECK: scf.forall (%[[I:.*]]) in (512)
// CHECK-NOT: scf.for
// CHECK: tensor.extract_slice %arg1[%[[I]], 0] [1, 5632]
// CHECK: linalg.generic {{.*}}mlirc.vector = 8 : i32
// CHECK: arith.mulf
// CHECK: tensor.parallel_insert_slice

#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%x: tensor<1x5632xbf16>, %w: tensor<512x5632xbf16>) -> tensor<1x512xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x512xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x512xf32>) -> tensor<1x512xf32>
  %r = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x5632xbf16>, tensor<512x5632xbf16>) outs(%f : tensor<1x512xf32>) {
  ^bb0(%a: bf16, %b: bf16, %out: f32):
    %0 = arith.extf %a : bf16 to f32
    %1 = arith.extf %b : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %out, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x512xf32>
  return %r : tensor<1x512xf32>
}
