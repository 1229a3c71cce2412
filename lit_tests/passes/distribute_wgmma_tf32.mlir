// RUN: %mlirc-opt %s --target sm_90a --pass mlirc-async | %filecheck %s --check-prefix=RING
// RUN: %mlirc-opt %s --target sm_90a --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: sed -e 's/mlirc.producers = 4/mlirc.producers = 1/' %s | not %mlirc-opt - --target sm_90a --pass mlirc-async 2>&1 | %filecheck %s --check-prefix=ALONE

// RING: mlirc.make_ring{{.*}}{panels, rewrite = "rounded", swizzle = 128 : i64, tile = tensor<16x32xf32>}, {panels, swizzle = 128 : i64, tile = tensor<32x128xf32>}

// The operand whose rows run along k is rounded where it lies; three mbarriers a slot, and no second buffer.
// CHECK-LABEL: gpu.func @matmul_0
// CHECK: memref.view {{.*}} to memref<3x1x16x32xf32
// CHECK-NOT: to memref<2x1x16x32xf32
// CHECK: memref.view {{.*}} to memref<3x4x32x32xf32
// CHECK: memref.view {{.*}} to memref<9xi64
// The loop carries the tensor cores' sums. The other operand is rounded on its way into registers.
// CHECK: scf.for {{.*}} -> (!llvm.struct<(f32, {{.*}})>, !llvm.struct<(f32,
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: vector.load {{.*}} vector<4xf32>
// CHECK: nvvm.convert.float.to.tf32 {{.*}} {rnd = #nvvm.fp_rnd_mode<rna>}
// It waits for the rounded one alone.
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: nvvm.wgmma.fence.aligned
// CHECK-COUNT-8: wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32
// CHECK: nvvm.wgmma.commit.group.sync.aligned
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK-NOT: arith.addf
// CHECK: scf.yield
// The warps beside the producer's wait for its copies alone.
// CHECK: nvvm.cp.async.bulk.tensor
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK-NOT: nvvm.mbarrier.try_wait.parity
// CHECK: vector.load {{.*}} vector<4xf32>
// CHECK: nvvm.convert.float.to.tf32
// CHECK: vector.store
// CHECK: nvvm.fence.proxy
// CHECK: nvvm.mbarrier.arrive

// ALONE: mlirc.producers: {{.*}}specialize(loop, producers=4)

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%a: tensor<16x256xf32>, %b: tensor<256x128xf32>) -> tensor<16x128xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16x128xf32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<16x128xf32>) {
    %t = tensor.empty() : tensor<16x128xf32>
    %f = linalg.fill ins(%zero : f32) outs(%t : tensor<16x128xf32>) -> tensor<16x128xf32>
    %c0 = arith.constant 0 : index
    %c32 = arith.constant 32 : index
    %c256 = arith.constant 256 : index
    %p = scf.for %k = %c0 to %c256 step %c32 iter_args(%s = %f) -> (tensor<16x128xf32>) {
      %x = tensor.extract_slice %a[0, %k] [16, 32] [1, 1] : tensor<16x256xf32> to tensor<16x32xf32>
      %y = tensor.extract_slice %b[%k, 0] [32, 128] [1, 1] : tensor<256x128xf32> to tensor<32x128xf32>
      %g = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%x, %y : tensor<16x32xf32>, tensor<32x128xf32>) outs(%s : tensor<16x128xf32>)
          attrs = {mlirc.mma = "wgmma_tf32", mlirc.copy = "tma", mlirc.warp_grid = array<i64: 1, 4>} {
      ^bb0(%u: f32, %v: f32, %w: f32):
        %uv = arith.mulf %u, %v : f32
        %z = arith.addf %w, %uv : f32
        linalg.yield %z : f32
      } -> tensor<16x128xf32>
      scf.yield %g : tensor<16x128xf32>
    } {mlirc.stages = 3 : i32, mlirc.producers = 4 : i32}
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %p into %o[0, 0] [16, 128] [1, 1] : tensor<16x128xf32> into tensor<16x128xf32>
    }
  }
  return %r : tensor<16x128xf32>
}
