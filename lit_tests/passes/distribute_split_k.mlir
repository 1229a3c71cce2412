// RUN: %mlirc-opt %s --script 'matmul:parts=2,mma=mma,copy=cp_async,block_m=16,block_n=32,block_k=16,stages=2' \
// RUN:   --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// Two blocks of a cluster for each tile. Each stores its part of the sums in its own shared memory; they meet; each adds the
// eight rows that are its own, of the first block and then of the second one, in the shared memory of both; and they meet
// again, since nobody may leave while the other one reads.

// CHECK-LABEL: gpu.func @matmul_0
// CHECK: %[[RANK:.*]] = nvvm.read.ptx.sreg.cluster.ctarank
// CHECK: scf.for
// CHECK: nvgpu.mma.sync
// CHECK: vector.store {{.*}}#gpu.address_space<workgroup>>
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK: %[[ONE:.*]] = llvm.load {{.*}} : !llvm.ptr<7> -> vector<4xf32>
// CHECK: %[[TWO:.*]] = llvm.load {{.*}} : !llvm.ptr<7> -> vector<4xf32>
// CHECK: %[[SUM:.*]] = arith.addf %[[ONE]], %{{.*}}
// CHECK: arith.addf %[[SUM]], %[[TWO]]
// CHECK: nvvm.cluster.arrive
// CHECK-NEXT: nvvm.cluster.wait
// CHECK-NEXT: gpu.return
// CHECK: gpu.launch_func @matmul_0_gpu::@matmul_0 clusters in (%c2, {{.*}}) blocks in (%c4,

func.func @matmul_0(%x: tensor<16x48xbf16>, %w: tensor<64x48xbf16>) -> tensor<16x64xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<16x64xf32>) -> tensor<16x64xf32>
  %r = linalg.generic {
    indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction"]
  } ins(%x, %w : tensor<16x48xbf16>, tensor<64x48xbf16>) outs(%f : tensor<16x64xf32>) {
  ^bb0(%a: bf16, %b: bf16, %o: f32):
    %a0 = arith.extf %a : bf16 to f32
    %b0 = arith.extf %b : bf16 to f32
    %p = arith.mulf %a0, %b0 : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  } -> tensor<16x64xf32>
  return %r : tensor<16x64xf32>
}
