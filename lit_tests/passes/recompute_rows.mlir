// RUN: %mlirc-opt %s --pass mlirc-recompute-rows | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-recompute-rows{readers=1}' | %filecheck %s --check-prefix=FEW
// RUN: %mlirc-opt %s --pass 'mlirc-recompute-rows{reads=3071}' | %filecheck %s --check-prefix=SHORT
// RUN: %mlirc-opt %s --pass 'mlirc-recompute-rows{elements=63}' | %filecheck %s --check-prefix=SHORT

// A row that two products read is computed by both, whose kernels are one; a row that is returned, too, stays a kernel.
// CHECK-LABEL: func.func @main
// CHECK: %[[A:.*]] = call @matmul_1(%arg0, %arg2)
// CHECK: %[[B:.*]] = call @matmul_1(%arg0, %arg3)
// CHECK: %[[N:.*]] = call @reduction_0(%arg1)
// CHECK: %[[C:.*]] = call @matmul_0(%[[N]], %arg2)
// CHECK: return %[[A]], %[[B]], %[[C]], %[[N]]
// CHECK: func.func private @matmul_1(%arg0: tensor<1x64xbf16>, %arg1: tensor<48x64xbf16>) -> tensor<1x48xf32>
// CHECK-SAME: mlirc.kind = "matmul", mlirc.origin = ["norm", "linear"]
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: math.rsqrt
// CHECK: iterator_types = ["parallel", "parallel", "reduction"]

// FEW: call @reduction_0(%arg0)
// FEW: call @matmul_0
// FEW: call @matmul_0
// SHORT: call @reduction_0(%arg0)

#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
func.func @main(%x: tensor<1x64xbf16>, %u: tensor<1x64xbf16>, %w: tensor<48x64xbf16>, %v: tensor<48x64xbf16>)
    -> (tensor<1x48xf32>, tensor<1x48xf32>, tensor<1x48xf32>, tensor<1x64xbf16>) {
  %n = call @reduction_0(%x) : (tensor<1x64xbf16>) -> tensor<1x64xbf16>
  %a = call @matmul_0(%n, %w) : (tensor<1x64xbf16>, tensor<48x64xbf16>) -> tensor<1x48xf32>
  %b = call @matmul_0(%n, %v) : (tensor<1x64xbf16>, tensor<48x64xbf16>) -> tensor<1x48xf32>
  %m = call @reduction_0(%u) : (tensor<1x64xbf16>) -> tensor<1x64xbf16>
  %c = call @matmul_0(%m, %w) : (tensor<1x64xbf16>, tensor<48x64xbf16>) -> tensor<1x48xf32>
  return %a, %b, %c, %m : tensor<1x48xf32>, tensor<1x48xf32>, tensor<1x48xf32>, tensor<1x64xbf16>
}
func.func private @reduction_0(%x: tensor<1x64xbf16>) -> tensor<1x64xbf16>
    attributes {mlirc.kernel, mlirc.kind = "reduction", mlirc.origin = ["norm"]} {
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
  return %n : tensor<1x64xbf16>
}
func.func private @matmul_0(%x: tensor<1x64xbf16>, %w: tensor<48x64xbf16>) -> tensor<1x48xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.origin = ["linear"]} {
  %zero = arith.constant 0.0 : f32
  %ez = tensor.empty() : tensor<1x48xf32>
  %z = linalg.fill ins(%zero : f32) outs(%ez : tensor<1x48xf32>) -> tensor<1x48xf32>
  %y = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<1x64xbf16>, tensor<48x64xbf16>) outs(%z : tensor<1x48xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %0 = arith.extf %a : bf16 to f32
    %1 = arith.extf %b : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %o, %2 : f32
    linalg.yield %3 : f32
  } -> tensor<1x48xf32>
  return %y : tensor<1x48xf32>
}
