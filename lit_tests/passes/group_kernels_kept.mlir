// RUN: %mlirc-opt %s --pass mlirc-group-kernels | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-group-kernels{reductions=false}' | %filecheck %s --check-prefix=APART
// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s --check-prefix=KERNEL

// A sum that is returned, and that a softmax of its rows reads, is computed in the softmax's kernel, which writes both.
// CHECK-LABEL: func.func @main
// CHECK: attrs =  {mlirc.kept = 0 : i64, mlirc.kernels = array<i64: 0>} {
// CHECK: addf
// CHECK: attrs =  {mlirc.kernels = array<i64: 0>} {
// CHECK: attrs =  {mlirc.kernels = array<i64: 0>, mlirc.root = 0 : i64} {

// APART: attrs =  {mlirc.kernels = array<i64: {{[0-9]}}>, mlirc.root = {{[0-9]}} : i64} {
// APART-NOT: mlirc.kept

// It is computed once, and the others read what was.
// KERNEL: %[[BOTH:.*]]:2 = call @reduction_0(%arg0, %arg1)
// KERNEL: return %[[BOTH]]#1, %[[BOTH]]#0
// KERNEL-LABEL: func.func private @reduction_0
// KERNEL: %[[SUM:.*]] = linalg.generic {{.*}} ins(%arg0, %arg1
// KERNEL: linalg.generic {{.*}} ins(%[[SUM]] :
// KERNEL: %[[SHARE:.*]] = linalg.generic {{.*}} ins(%[[SUM]], %
// KERNEL: return %[[SHARE]], %[[SUM]]
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<3x40xf32>, %y: tensor<3x40xf32>) -> (tensor<3x40xf32>, tensor<3x40xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x40xf32>
  %h = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %y : tensor<3x40xf32>, tensor<3x40xf32>) outs(%e : tensor<3x40xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<3x40xf32>
  %es = tensor.empty() : tensor<3xf32>
  %fs = linalg.fill ins(%zero : f32) outs(%es : tensor<3xf32>) -> tensor<3xf32>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%h : tensor<3x40xf32>) outs(%fs : tensor<3xf32>) {
  ^bb0(%p: f32, %o: f32):
    %s = arith.addf %p, %o : f32
    linalg.yield %s : f32
  } -> tensor<3xf32>
  %n = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%h, %sum : tensor<3x40xf32>, tensor<3xf32>) outs(%e : tensor<3x40xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.divf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<3x40xf32>
  return %h, %n : tensor<3x40xf32>, tensor<3x40xf32>
}
