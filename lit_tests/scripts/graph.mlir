// RUN: %mlirc-opt %s --script graph | %filecheck %s
// RUN: %mlirc-opt %s --script graph:fuse_reductions=false | %filecheck %s --check-prefix=APART

// RMSNorm, then SwiGLU over two matmuls of one left operand, is two kernels.
// CHECK-LABEL: func.func @main
// CHECK: call @reduction_0
// CHECK: call @matmul_0
// CHECK-NOT: call
// CHECK: return

// CHECK-LABEL: func.func private @reduction_0
// CHECK: mulf
// CHECK: iterator_types = ["parallel", "reduction"]
// CHECK: iterator_types = ["parallel"]
// CHECK: math.rsqrt
// CHECK: iterator_types = ["parallel", "parallel"]

// The weights are read as they lie, [N, K].
// CHECK-LABEL: func.func private @matmul_0(
// CHECK-SAME: tensor<3x8xf32>, %{{.*}}: tensor<5x8xf32>, %{{.*}}: tensor<5x8xf32>) -> tensor<3x5xf32>
// CHECK-COUNT-2: iterator_types = ["parallel", "parallel", "reduction"]
// CHECK: math.exp
// CHECK-NOT: linalg.generic
// CHECK: return

// APART: call @reduction_0
// APART: call @elementwise
// APART: call @matmul_0
#row = affine_map<(d0, d1) -> (d0)>
#id = affine_map<(d0, d1) -> (d0, d1)>
#vec = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<3x8xf32>, %w: tensor<5x8xf32>, %v: tensor<5x8xf32>) -> tensor<3x5xf32> {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %e = tensor.empty() : tensor<3x8xf32>
  %sq = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<3x8xf32>) outs(%e : tensor<3x8xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.mulf %p, %p : f32
    linalg.yield %s : f32
  } -> tensor<3x8xf32>
  %er = tensor.empty() : tensor<3xf32>
  %fr = linalg.fill ins(%zero : f32) outs(%er : tensor<3xf32>) -> tensor<3xf32>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%sq : tensor<3x8xf32>) outs(%fr : tensor<3xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.addf %p, %o : f32
    linalg.yield %s : f32
  } -> tensor<3xf32>
  %rs = linalg.generic {indexing_maps = [#vec, #vec], iterator_types = ["parallel"]}
      ins(%sum : tensor<3xf32>) outs(%er : tensor<3xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = math.rsqrt %p : f32
    linalg.yield %s : f32
  } -> tensor<3xf32>
  %n = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %rs : tensor<3x8xf32>, tensor<3xf32>) outs(%e : tensor<3x8xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.mulf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<3x8xf32>
  %ew = tensor.empty() : tensor<8x5xf32>
  %wt = linalg.transpose ins(%w : tensor<5x8xf32>) outs(%ew : tensor<8x5xf32>) permutation = [1, 0]
  %vt = linalg.transpose ins(%v : tensor<5x8xf32>) outs(%ew : tensor<8x5xf32>) permutation = [1, 0]
  %em = tensor.empty() : tensor<3x5xf32>
  %fm = linalg.fill ins(%zero : f32) outs(%em : tensor<3x5xf32>) -> tensor<3x5xf32>
  %gate = linalg.matmul ins(%n, %wt : tensor<3x8xf32>, tensor<8x5xf32>) outs(%fm : tensor<3x5xf32>) -> tensor<3x5xf32>
  %up = linalg.matmul ins(%n, %vt : tensor<3x8xf32>, tensor<8x5xf32>) outs(%fm : tensor<3x5xf32>) -> tensor<3x5xf32>
  %silu = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%gate : tensor<3x5xf32>) outs(%em : tensor<3x5xf32>) {
  ^bb0(%p: f32, %o: f32):
    %neg = arith.negf %p : f32
    %exp = math.exp %neg : f32
    %den = arith.addf %exp, %one : f32
    %s = arith.divf %p, %den : f32
    linalg.yield %s : f32
  } -> tensor<3x5xf32>
  %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%silu, %up : tensor<3x5xf32>, tensor<3x5xf32>) outs(%em : tensor<3x5xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.mulf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<3x5xf32>
  return %r : tensor<3x5xf32>
}
