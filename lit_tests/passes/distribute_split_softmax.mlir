// RUN: %mlirc-opt %s --script 'cached_attention:parts=2,combine=cluster,teams=2,block_kv=8' --pass mlirc-async \
// RUN:   --pass mlirc-distribute | %filecheck %s

// Two blocks of a cluster have two warps each, of which each is a team: what a team does is emitted once. A part has one
// step at most, whose page is read in front of the branch, and whose queries are copied with the keys. The block combines
// the parts of its teams behind one barrier, the cluster those of its blocks behind another one, and nobody meets else.

// CHECK-LABEL: gpu.func @attention_0
// CHECK: %[[RANK:.*]] = nvvm.read.ptx.sreg.cluster.ctarank
// CHECK: memref.load {{.*}} : memref<2x2xi64>
// CHECK: scf.if {{.*}} -> (
// CHECK-NOT: memref.load {{.*}} : memref<2x2xi64>
// CHECK-COUNT-3: nvgpu.device_async_copy
// CHECK: nvgpu.mma.sync
// CHECK-NOT: scf.for
// CHECK: gpu.barrier
// CHECK: vector.load {{.*}}#gpu.address_space<workgroup>>
// CHECK-NOT: gpu.barrier
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK: llvm.load {{.*}} : !llvm.ptr<7>
// CHECK-NOT: gpu.barrier
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK-NEXT: gpu.return
// CHECK: gpu.launch_func @attention_0_gpu::@attention_0 clusters in (%c2, {{.*}}) blocks in (%c8, {{.*}}) threads in (%c64,
func.func private @attention_0(%q: tensor<2x4x1x64xbf16>, %k: tensor<7x2x16x64xbf16>, %v: tensor<7x2x16x64xbf16>,
    %t: tensor<2x2xi64>, %n: tensor<2xi64>) -> tensor<2x4x1x64xbf16>
    attributes {mlirc.kernel, mlirc.kind = "attention", mlirc.origin = []} {
  %o = "mlirc.cached_attention"(%q, %k, %v, %t, %n) {scale = 0.125 : f64, window = 0 : i64, softcap = 0.0 : f64,
      layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
      : (tensor<2x4x1x64xbf16>, tensor<7x2x16x64xbf16>, tensor<7x2x16x64xbf16>, tensor<2x2xi64>, tensor<2xi64>)
      -> tensor<2x4x1x64xbf16>
  return %o : tensor<2x4x1x64xbf16>
}
