// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-group-kernels{epilogue=false}' | %filecheck %s --check-prefix=NOEPI

// The weight's transpose, the bias and the activation join the matmul; the row sum reads the activation from memory.
// CHECK-LABEL: func.func @main
// CHECK: linalg.transpose
// CHECK-SAME: mlirc.kernels = array<i64: 1>
// CHECK: linalg.matmul {mlirc.kernels = array<i64: 1>}
// CHECK: linalg.generic
// CHECK-SAME: attrs =  {mlirc.kernels = array<i64: 1>} {
// CHECK: addf
// CHECK: linalg.generic
// CHECK-SAME: attrs =  {mlirc.kernels = array<i64: 1>, mlirc.root = 1 : i64} {
// CHECK: maximumf
// CHECK: "reduction"
// CHECK-SAME: attrs =  {mlirc.kernels = array<i64: 0>, mlirc.root = 0 : i64} {

// Without epilogues the matmul writes its own result, and the maps after it are one kernel.
// NOEPI: linalg.matmul {mlirc.kernels = array<i64: 2>, mlirc.root = 2 : i64}
// NOEPI: attrs =  {mlirc.kernels = array<i64: 1>} {
// NOEPI: addf
// NOEPI: attrs =  {mlirc.kernels = array<i64: 1>, mlirc.root = 1 : i64} {
// NOEPI: maximumf

#row = affine_map<(d0, d1) -> (d0)>
#col = affine_map<(d0, d1) -> (d1)>
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<3x4xf32>, %w: tensor<5x4xf32>, %b: tensor<5xf32>) -> (tensor<3x5xf32>, tensor<3xf32>) {
  %zero = arith.constant 0.0 : f32
  %ewt = tensor.empty() : tensor<4x5xf32>
  %wt = linalg.transpose ins(%w : tensor<5x4xf32>) outs(%ewt : tensor<4x5xf32>) permutation = [1, 0]
  %e = tensor.empty() : tensor<3x5xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<3x5xf32>) -> tensor<3x5xf32>
  %m = linalg.matmul ins(%x, %wt : tensor<3x4xf32>, tensor<4x5xf32>) outs(%f : tensor<3x5xf32>) -> tensor<3x5xf32>
  %a = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel"]}
      ins(%m, %b : tensor<3x5xf32>, tensor<5xf32>) outs(%e : tensor<3x5xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<3x5xf32>
  %r = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<3x5xf32>) outs(%e : tensor<3x5xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.maximumf %p, %zero : f32
    linalg.yield %s : f32
  } -> tensor<3x5xf32>
  %es = tensor.empty() : tensor<3xf32>
  %fs = linalg.fill ins(%zero : f32) outs(%es : tensor<3xf32>) -> tensor<3xf32>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%r : tensor<3x5xf32>) outs(%fs : tensor<3xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.addf %p, %o : f32
    linalg.yield %s : f32
  } -> tensor<3xf32>
  return %r, %sum : tensor<3x5xf32>, tensor<3xf32>
}
