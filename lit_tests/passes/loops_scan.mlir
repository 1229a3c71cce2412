// RUN: %mlirc-opt %s --pass mlirc-loops | %filecheck %s

// The scanned dimension is serial in each thread, the others are threads.
// CHECK-LABEL: gpu.func @cumsum_0
// CHECK: %[[INNER:.*]] = arith.remui
// CHECK: %[[OUTER:.*]] = arith.divui
// CHECK: scf.for %[[K:.*]] =
// CHECK: memref.load %{{.*}}[%[[OUTER]], %[[K]], %[[INNER]]]
// CHECK: gpu.launch_func
// CHECK-NOT: gpu.launch_func
func.func private @cumsum(%x: tensor<4x5x6xf32>) -> tensor<4x5x6xf32>
    attributes {mlirc.kernel, mlirc.lowering = "loops"} {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x5x6xf32>
  %a0 = tensor.empty() : tensor<4x6xf32>
  %a = linalg.fill ins(%z : f32) outs(%a0 : tensor<4x6xf32>) -> tensor<4x6xf32>
  %r:2 = tm_tensor.scan dimension(1) inclusive(true) ins(%x : tensor<4x5x6xf32>)
      outs(%e, %a : tensor<4x5x6xf32>, tensor<4x6xf32>) {
  ^bb0(%p: f32, %q: f32):
    %s = arith.addf %p, %q : f32
    tm_tensor.yield %s : f32
  } -> tensor<4x5x6xf32>, tensor<4x6xf32>
  return %r#0 : tensor<4x5x6xf32>
}
