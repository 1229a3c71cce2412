// RUN: %mlirc-opt %s --script 'attention:block_q=64,block_kv=32,stages=2' --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// FP32 attention: queries in panels of 128 bytes a row, once; scores and weights stay in registers, one test per product for
// sums that are not finite, which alone write the weights to shared memory.
// CHECK-LABEL: gpu.func @attention_0
// CHECK-DAG: memref.view {{.*}} to memref<1x2x64x32xf32
// CHECK-DAG: memref.view {{.*}} to memref<2x2x32x32xf32
// CHECK-DAG: memref.view {{.*}} to memref<64x32xf32
// CHECK: scf.for %{{.*}} = %c0 to %c64 step %c32
// CHECK: vector.load {{.*}}memref<1x2x64x32xf32{{.*}} vector<2xf32>
// CHECK: nvgpu.mma.sync{{.*}} tf32Enabled
// CHECK: nvvm.vote.sync any
// CHECK: scf.if
// CHECK: math.exp2
// CHECK-NOT: vector.store
// CHECK: vector.load {{.*}}memref<2x2x32x32xf32{{.*}} vector<4xf32>
// CHECK: nvgpu.mma.sync{{.*}} tf32Enabled
// CHECK: nvvm.vote.sync any
// CHECK: scf.if
// CHECK: vector.store {{.*}}memref<64x32xf32
// CHECK: math.fma
// CHECK: arith.divf

func.func private @attention_0(%q: tensor<1x2x64x64xf32>, %k: tensor<1x2x64x64xf32>, %v: tensor<1x2x64x64xf32>)
    -> tensor<1x2x64x64xf32> attributes {mlirc.kernel, mlirc.kind = "attention"} {
  %o = "mlirc.attention"(%q, %k, %v) {scale = 0.125 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
      : (tensor<1x2x64x64xf32>, tensor<1x2x64x64xf32>, tensor<1x2x64x64xf32>) -> tensor<1x2x64x64xf32>
  return %o : tensor<1x2x64x64xf32>
}
