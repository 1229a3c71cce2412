// RUN: %mlirc-opt %s --pass 'mlirc-decompose-attention{wide_f32=256}' | %filecheck %s

// Heads whose results do not fit registers; rows of no key are as a written-out softmax has them.
// CHECK-LABEL: func.func @main
// CHECK: linalg.generic
// CHECK-NOT: arith.select
// CHECK: arith.divf
// CHECK: "mlirc.attention"
func.func @main(%q: tensor<1x2x3x260xf32>, %n: tensor<1x2x3x8xf32>) -> (tensor<1x2x3x260xf32>, tensor<1x2x3x8xf32>) {
  %o = "mlirc.attention"(%q, %q, %q) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"], nan_rows}
    : (tensor<1x2x3x260xf32>, tensor<1x2x3x260xf32>, tensor<1x2x3x260xf32>) -> tensor<1x2x3x260xf32>
  %p = "mlirc.attention"(%n, %n, %n) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>, tensor<1x2x3x8xf32>) -> tensor<1x2x3x8xf32>
  return %o, %p : tensor<1x2x3x260xf32>, tensor<1x2x3x8xf32>
}
