// RUN: %mlirc-opt %s --script auto | %filecheck %s
// RUN: %mlirc-opt %s --script 'attention:block_kv=16,stages=1' | %filecheck %s --check-prefix=KNOBS
// RUN: %mlirc-opt %s --script 'attention:block_q=128,block_kv=64' --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU
// RUN: %mlirc-opt %s --script 'attention:block_q=64,block_kv=16,rotate=1' --pass mlirc-async | %filecheck %s --check-prefix=AHEAD
// RUN: %mlirc-opt %s --script 'attention:block_q=64,block_kv=16,rotate=1' --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=SOON
// RUN: %mlirc-opt %s --script 'attention:block_q=128,block_kv=16,behind=1,turns=2' --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=TURNS

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
// GPU: nvvm.setmaxregister increase 232
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
// GPU: nvvm.setmaxregister decrease 40
// GPU: nvvm.mbarrier.arrive.expect_tx %{{.*}}, %c8192_i32
// GPU: nvvm.cp.async.bulk.tensor.shared.cluster.global
// GPU: nvvm.mbarrier.arrive.expect_tx %{{.*}}, %c8192_i32
// GPU: nvvm.cp.async.bulk.tensor.shared.cluster.global

// Values a block of keys behind, and two warpgroups that take turns at both products: results are scaled in front of them,
// the next scores and the values of this step are under way together, the softmax waits for the scores alone, and weights
// are rounded when the values are done, whose product reads the old ones.
// TURNS: gpu.func @attention_0
// TURNS: nvvm.setmaxregister increase
// TURNS: nvvm.barrier.arrive
// TURNS: scf.for
// TURNS: arith.mulf
// TURNS: nvvm.barrier id = %c2_i32 number_of_threads = %c256_i32
// TURNS: nvvm.barrier id = %c3_i32 number_of_threads = %c256_i32
// TURNS-NEXT: }
// TURNS-NEXT: nvvm.wgmma.fence.aligned
// TURNS: nvvm.wgmma.mma_async {{.*}}D[<f32>, <zero>]
// TURNS-NOT: nvvm.wgmma.wait
// TURNS: llvm.inline_asm {{.*}}wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16
// TURNS: nvvm.wgmma.commit.group.sync.aligned
// TURNS-NOT: nvvm.wgmma.wait
// TURNS: nvvm.barrier.arrive id = %c3_i32 number_of_threads = %c256_i32
// TURNS: nvvm.barrier.arrive id = %c2_i32 number_of_threads = %c256_i32
// TURNS: nvvm.wgmma.wait.group.sync.aligned 1
// TURNS: arith.maximumf
// TURNS: math.exp2
// TURNS: nvvm.wgmma.wait.group.sync.aligned 0
// TURNS: arith.truncf
// TURNS: llvm.inline_asm has_side_effects "", "=r,0"
// TURNS: scf.yield

// Scores a block of keys ahead: the producer's keys are one step ahead of the values, and the scores of the next keys are
// under way during the softmax of these; both slots are given back in front of what looks at the sums.
// AHEAD: %[[KEYS:.*]] = "mlirc.make_ring"()
// AHEAD: %[[VALUES:.*]] = "mlirc.make_ring"()
// AHEAD: scf.for {{.*}} = %c0 to %c16
// AHEAD: "mlirc.put"(%[[KEYS]]
// AHEAD: scf.for %[[KEY:.*]] = %c0 to %c112 step %c16
// AHEAD: %[[NEXT:.*]] = affine.apply #{{.*}}(%[[KEY]])
// AHEAD: tensor.extract_slice %arg1[%{{.*}}, %{{.*}}, %[[NEXT]], 0]
// AHEAD: "mlirc.put"(%[[KEYS]]
// AHEAD: tensor.extract_slice %arg2[%{{.*}}, %{{.*}}, %[[KEY]], 0]
// AHEAD: "mlirc.put"(%[[VALUES]]
// AHEAD: scf.for {{.*}} = %c112 to %c128
// AHEAD: "mlirc.put"(%[[VALUES]]
// AHEAD: %[[FIRST:.*]] = scf.for {{.*}} = %c0 to %c16
// AHEAD: scf.for {{.*}} = %c0 to %c112 {{.*}} %[[SCORES:[^ ]*]] = %[[FIRST]])
// AHEAD: %[[TILE:.*]] = "mlirc.get"(%[[KEYS]])
// AHEAD: %[[COMING:.*]] = linalg.generic {{.*}} ins(%extracted_slice, %[[TILE]] :
// AHEAD: linalg.generic {{.*}} ins(%[[SCORES]] :
// AHEAD: arith.maximumf
// AHEAD: math.exp2
// AHEAD: "mlirc.release"(%[[KEYS]]) {lag = 0 : i64}
// AHEAD-NEXT: "mlirc.release"(%[[VALUES]]) {lag = 1 : i64}
// AHEAD: scf.yield {{.*}}, %[[COMING]] :
// SOON: nvvm.wgmma.mma_async {{.*}}D[<f32>, <zero>]
// SOON: scf.for {{.*}} = %c0 to %c112
// SOON: nvvm.wgmma.mma_async {{.*}}D[<f32>, <zero>]
// SOON: nvvm.wgmma.commit.group.sync.aligned
// SOON-NOT: nvvm.wgmma.wait
// SOON: nvvm.mbarrier.try_wait.parity
// SOON-NOT: nvvm.wgmma.wait
// SOON: math.exp2
// SOON-NOT: nvvm.wgmma.wait
// SOON: nvvm.mbarrier.try_wait.parity
// SOON-NOT: nvvm.mbarrier
// SOON: nvvm.wgmma.wait.group.sync.aligned 0
// SOON: nvvm.mbarrier.arrive %
// SOON: llvm.inline_asm {{.*}}wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16
// SOON-NEXT: nvvm.wgmma.commit.group.sync.aligned
// SOON-NEXT: nvvm.wgmma.wait.group.sync.aligned 1
// SOON: scf.yield

func.func private @attention_0(%q: tensor<1x2x128x64xf16>, %k: tensor<1x2x128x64xf16>, %v: tensor<1x2x128x64xf16>)
    -> tensor<1x2x128x64xf16> attributes {mlirc.kernel, mlirc.kind = "attention"} {
  %o = "mlirc.attention"(%q, %k, %v) {scale = 0.125 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
      : (tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>, tensor<1x2x128x64xf16>) -> tensor<1x2x128x64xf16>
  return %o : tensor<1x2x128x64xf16>
}
