// RUN: %mlirc-opt %s --pass mlirc-fold-attention-layouts | %filecheck %s

// The transpose that every user of the result applies becomes its layout.
// CHECK-LABEL: func.func @main
// CHECK: %[[O:.*]] = "mlirc.attention"
// CHECK-SAME: layouts = ["bhsd", "bhsd", "bhsd", "bshd"]
// CHECK-SAME: -> tensor<1x5x2x8xf32>
// CHECK-NOT: linalg.transpose
// CHECK: "mlirc.attention"
// CHECK-SAME: layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]
// A result that is also used as it is keeps its layout.
// CHECK: %[[T:.*]] = linalg.transpose
// CHECK: return %[[O]], %[[T]]
func.func @main(%q: tensor<1x2x5x8xf32>, %k: tensor<1x2x7x8xf32>)
    -> (tensor<1x5x2x8xf32>, tensor<1x5x2x8xf32>, tensor<1x2x5x8xf32>) {
  %e = tensor.empty() : tensor<1x5x2x8xf32>
  %0 = "mlirc.attention"(%q, %k, %k) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x2x5x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) -> tensor<1x2x5x8xf32>
  %1 = linalg.transpose ins(%0 : tensor<1x2x5x8xf32>) outs(%e : tensor<1x5x2x8xf32>) permutation = [0, 2, 1, 3]
  %2 = "mlirc.attention"(%q, %k, %k) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<1x2x5x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>) -> tensor<1x2x5x8xf32>
  %3 = linalg.transpose ins(%2 : tensor<1x2x5x8xf32>) outs(%e : tensor<1x5x2x8xf32>) permutation = [0, 2, 1, 3]
  return %1, %3, %2 : tensor<1x5x2x8xf32>, tensor<1x5x2x8xf32>, tensor<1x2x5x8xf32>
}
