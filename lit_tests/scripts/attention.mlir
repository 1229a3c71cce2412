// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'attention:block_kv=16,stages=1' | %filecheck %s --check-prefix=KNOBS
// RUN: %mlirc-opt %s --script 'attention:block_q=128,block_kv=64' --pass mlirc-distribute | %filecheck %s --check-prefix=GPU

// CHECK-LABEL: func.func private @attention_0
// CHECK-SAME: mlirc.warps = 4 : i32
// CHECK: scf.forall {{.*}} in (1, 2, 2)
// CHECK: scf.for {{.*}} step %c128
// CHECK: mlirc.copy = "tma"
// CHECK-SAME: mlirc.mma = "wgmma"
// CHECK-SAME: mlirc.warp_grid = array<i64: 4, 1>
// CHECK: mlirc.producers = 1 : i32
// CHECK-SAME: mlirc.stages = 2 : i32
// CHECK: mlirc.store = "tma"
// KNOBS: mlirc.warps = 4 : i32
// KNOBS: scf.for {{.*}} step %c16
// KNOBS: mlirc.mma = "mma"
// KNOBS: mlirc.stages = 1 : i32

// A warpgroup of producers gives registers to two that compute. Keys and values have rings of their own: the slot of
// the keys is given back when the scores are there, that of the values when the next scores are; weights are the second
// product's operand in registers.
// GPU: gpu.func @attention_0
// GPU-SAME: known_block_size = array<i32: 384, 1, 1>
// GPU: memref<2x64x64xf16, #gpu.address_space<workgroup>>
// GPU: memref<2x1x64x64xf16, #gpu.address_space<workgroup>>
// GPU: nvvm.setmaxregister increase 240
// GPU: vector.store {{.*}} memref<1x128x64xf16, #gpu.address_space<workgroup>>
// GPU: nvvm.fence.proxy
// GPU: scf.for
// GPU: nvvm.mbarrier.try_wait.parity
// GPU: nvvm.wgmma.mma_async {{.*}}D[<f32>, <zero>]
// GPU: nvvm.wgmma.wait.group.sync.aligned 0
// GPU: nvvm.mbarrier.arrive %
// GPU: math.exp2
// GPU: nvvm.mbarrier.try_wait.parity
// GPU: nvvm.wgmma.fence.aligned
// GPU-NOT: arith.truncf
// GPU: llvm.inline_asm {{.*}}wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16
// GPU: nvvm.wgmma.wait.group.sync.aligned 1
// GPU: scf.yield
// GPU: nvvm.setmaxregister decrease 24
// GPU: nvvm.mbarrier.arrive.expect_tx %{{.*}}, %c8192_i32
// GPU: nvvm.cp.async.bulk.tensor.shared.cluster.global
// GPU: nvvm.mbarrier.arrive.expect_tx %{{.*}}, %c8192_i32
// GPU: nvvm.cp.async.bulk.tensor.shared.cluster.global

func.func private @attention_0(%q: tensor<1x2x128x64xf16>, %k: tensor<1x2x128x64xf16>, %v: tensor<1x2x128x64xf16>)
    -> tensor<1x2x128x64xf16> attributes {mlirc.kernel, mlirc.kind = "attention"} {
  %o = "mlirc.attention"(%q, %k, %v) {scale = 0.125 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
      : (tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>) -> tensor<1x2x128x64xf16>
  return %o : tensor<1x2x128x64xf16>
}
