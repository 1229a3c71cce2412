// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script auto --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU

// A norm of the one row that a product reads: each block computes all of it, and reads its rows of the matrix before.

// CHECK-LABEL: func.func private @matmul_0
// CHECK: scf.forall (%[[I:.*]]) in (48)
// CHECK: tensor.extract_slice %{{.*}}[0] [64] [1]
// CHECK: tensor.extract_slice %arg1[%[[I]], 0] [1, 64]
// CHECK-NOT: tensor.extract_slice
// CHECK: iterator_types = ["reduction"]
// CHECK: math.rsqrt
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: tensor.parallel_insert_slice

// GPU-LABEL: gpu.func @matmul_0
// GPU: vector.load %arg1
// GPU: gpu.shuffle xor
// GPU: math.rsqrt

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%x: tensor<1x64xbf16>, %w: tensor<48x64xbf16>) -> tensor<1x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x64xf32>
  %sq = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<1x64xbf16>) outs(%e : tensor<1x64xf32>) {
  ^bb0(%a: bf16, %o: f32):
    %t = arith.extf %a : bf16 to f32
    %s = arith.mulf %t, %t : f32
    linalg.yield %s : f32
  } -> tensor<1x64xf32>
  %er = tensor.empty() : tensor<1xf32>
  %fr = linalg.fill ins(%zero : f32) outs(%er : tensor<1xf32>) -> tensor<1xf32>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%sq : tensor<1x64xf32>) outs(%fr : tensor<1xf32>) {
  ^bb0(%a: f32, %o: f32):
    %s = arith.addf %a, %o : f32
    linalg.yield %s : f32
  } -> tensor<1xf32>
  %en = tensor.empty() : tensor<1x64xbf16>
  %n = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %sum : tensor<1x64xbf16>, tensor<1xf32>) outs(%en : tensor<1x64xbf16>) {
  ^bb0(%a: bf16, %b: f32, %o: bf16):
    %t = arith.extf %a : bf16 to f32
    %q = math.rsqrt %b : f32
    %s = arith.mulf %t, %q : f32
    %h = arith.truncf %s : f32 to bf16
    linalg.yield %h : bf16
  } -> tensor<1x64xbf16>
  %ez = tensor.empty() : tensor<1x48xf32>
  %z = linalg.fill ins(%zero : f32) outs(%ez : tensor<1x48xf32>) -> tensor<1x48xf32>
  %y = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%n, %w : tensor<1x64xbf16>, tensor<48x64xbf16>) outs(%z : tensor<1x48xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %0 = arith.extf %a : bf16 to f32
    %1 = arith.extf %b : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %o, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x48xf32>
  return %y : tensor<1x48xf32>
}
