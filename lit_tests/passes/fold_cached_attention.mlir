// RUN: %mlirc-opt %s --pass mlirc-fold-attention-layouts | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-fold-attention-layouts --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s --check-prefix=KERNEL

// Attention over a cache writes its result as its readers have it, and reads its operands as they lie in memory.
// CHECK-LABEL: func.func @main
// CHECK: "mlirc.cached_attention"
// CHECK-SAME: layouts = ["bhsd", "bhsd", "bhsd", "bshd"]
// CHECK-NOT: linalg.transpose
// CHECK: return

// KERNEL-LABEL: func.func @main
// KERNEL: call @attention_0(%arg0, %arg1, %arg2, %arg3, %arg4)
// KERNEL-LABEL: func.func private @attention_0
// KERNEL: "mlirc.cached_attention"(%arg0, %arg1, %arg2, %arg3, %arg4)
// KERNEL-SAME: layouts = ["bshd", "bhsd", "bshd", "bshd"]
func.func @main(%q: tensor<2x3x4x8xf32>, %k: tensor<7x2x5x8xf32>, %v: tensor<7x5x2x8xf32>, %t: tensor<2x6xi64>,
                %n: tensor<2xi64>) -> tensor<2x3x4x8xf32> {
  %e = tensor.empty() : tensor<2x3x4x8xf32>
  %eq = tensor.empty() : tensor<2x4x3x8xf32>
  %ev = tensor.empty() : tensor<7x2x5x8xf32>
  %a = linalg.transpose ins(%q : tensor<2x3x4x8xf32>) outs(%eq : tensor<2x4x3x8xf32>) permutation = [0, 2, 1, 3]
  %b = linalg.transpose ins(%v : tensor<7x5x2x8xf32>) outs(%ev : tensor<7x2x5x8xf32>) permutation = [0, 2, 1, 3]
  %0 = "mlirc.cached_attention"(%a, %k, %b, %t, %n) {scale = 0.5 : f64, window = 0 : i64, softcap = 0.0 : f64,
    layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
    : (tensor<2x4x3x8xf32>, tensor<7x2x5x8xf32>, tensor<7x2x5x8xf32>, tensor<2x6xi64>, tensor<2xi64>) -> tensor<2x4x3x8xf32>
  %1 = linalg.transpose ins(%0 : tensor<2x4x3x8xf32>) outs(%e : tensor<2x3x4x8xf32>) permutation = [0, 2, 1, 3]
  return %1 : tensor<2x3x4x8xf32>
}
