// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'matvec:rows=2,warps=4' | %filecheck %s --check-prefix=KNOBS

// One row times a matrix: a block takes one of the matrix's rows, whole, with seven warps, two loads of 16 bytes a lane.

// CHECK-LABEL: func.func private @matmul_0
// CHECK-SAME: mlirc.warps = 7 : i32
// CHECK: scf.forall (%[[I:.*]]) in (512)
// CHECK-NOT: scf.for
// CHECK: tensor.extract_slice %arg1[%[[I]], 0] [1, 3584]
// CHECK: linalg.generic {{.*}}mlirc.vector = 8 : i32
// CHECK: arith.mulf
// CHECK: tensor.parallel_insert_slice
// KNOBS-LABEL: func.func private @matmul_0
// KNOBS-SAME: mlirc.warps = 4 : i32
// KNOBS: scf.forall {{.*}} in (256)
// KNOBS: tensor.extract_slice {{.*}} [2, 3584]

#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%x: tensor<1x3584xbf16>, %w: tensor<512x3584xbf16>) -> tensor<1x512xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x512xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x512xf32>) -> tensor<1x512xf32>
  %r = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x3584xbf16>, tensor<512x3584xbf16>) outs(%f : tensor<1x512xf32>) {
  ^bb0(%a: bf16, %b: bf16, %out: f32):
    %0 = arith.extf %a : bf16 to f32
    %1 = arith.extf %b : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %out, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x512xf32>
  return %r : tensor<1x512xf32>
}

// Many short rows, a head's: a block takes eight, two to a warp.

// CHECK-LABEL: func.func private @matmul_1
// CHECK-SAME: mlirc.warps = 4 : i32
// CHECK: scf.forall {{.*}} in (4000)
// CHECK: tensor.extract_slice {{.*}} [8, 2048]
func.func private @matmul_1(%x: tensor<1x2048xbf16>, %w: tensor<32000x2048xbf16>) -> tensor<1x32000xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x32000xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x32000xf32>) -> tensor<1x32000xf32>
  %r = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x2048xbf16>, tensor<32000x2048xbf16>) outs(%f : tensor<1x32000xf32>) {
  ^bb0(%a: bf16, %b: bf16, %out: f32):
    %0 = arith.extf %a : bf16 to f32
    %1 = arith.extf %b : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %out, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x32000xf32>
  return %r : tensor<1x32000xf32>
}
