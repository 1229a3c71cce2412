// RUN: %mlirc-opt %s --pass mlirc-fold-attention-layouts | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-decompose-attention | %filecheck %s --check-prefix=EXACT
// RUN: %mlirc-opt %s --script graph | %filecheck %s --check-prefix=KERNELS

// A transpose becomes the layout of the result; the log-sum-exp, [batch, head, query], has none.
// CHECK-LABEL: func.func @main
// CHECK: %[[O:.*]]:2 = "mlirc.attention"
// CHECK-SAME: layouts = ["bhsd", "bhsd", "bhsd", "bshd"]
// CHECK-SAME: -> (tensor<1x5x2x8xf32>, tensor<1x2x5xf32>)
// CHECK-NOT: linalg.transpose

// The maximum and the logarithm of the sum; an infinite maximum is the logarithm.
// EXACT: math.log
// EXACT: arith.addf
// EXACT: math.absf
// EXACT: arith.select

// Maps of log-sum-exps are computed where they are read, exponentials, too.
// KERNELS-LABEL: func.func @main
// KERNELS: call @attention_0
// KERNELS: call @elementwise_0
// KERNELS-NOT: call
// KERNELS: return
#rows = affine_map<(d0, d1, d2, d3) -> (d0, d2, d1)>
#all = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>
#row = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
func.func @main(%q: tensor<1x2x5x8xf32>, %k: tensor<1x2x7x8xf32>) -> tensor<1x5x2x8xf32> {
  %e = tensor.empty() : tensor<1x5x2x8xf32>
  %f = tensor.empty() : tensor<1x2x5xf32>
  %0:2 = "mlirc.attention"(%q, %k, %k) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x2x5x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) -> (tensor<1x2x5x8xf32>, tensor<1x2x5xf32>)
  %1 = linalg.transpose ins(%0#0 : tensor<1x2x5x8xf32>) outs(%e : tensor<1x5x2x8xf32>) permutation = [0, 2, 1, 3]
  %2 = linalg.generic {indexing_maps = [#row, #row], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%0#1 : tensor<1x2x5xf32>) outs(%f : tensor<1x2x5xf32>) {
  ^bb0(%x: f32, %out: f32):
    %y = math.exp %x : f32
    linalg.yield %y : f32
  } -> tensor<1x2x5xf32>
  %3 = linalg.generic {indexing_maps = [#rows, #all, #all],
    iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
    ins(%2, %1 : tensor<1x2x5xf32>, tensor<1x5x2x8xf32>) outs(%e : tensor<1x5x2x8xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %z = arith.mulf %x, %y : f32
    linalg.yield %z : f32
  } -> tensor<1x5x2x8xf32>
  return %3 : tensor<1x5x2x8xf32>
}
