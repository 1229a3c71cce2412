// RUN: %mlirc-opt %s --script 'matmul:block_m=32,block_n=32,block_k=16,warps_m=1,warps_n=1,stages=2' --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// A product of f32 operands: 4-byte copies into a ring of two buffers, one slice of K ahead; fused multiply-adds on what
// each thread reads from shared memory. One warp needs no barrier of the block.
// CHECK-LABEL: gpu.func @matmul_0
// CHECK-SAME: mlirc.smem = 8192 : i32
// CHECK-NOT: gpu.barrier
// CHECK: memref.view %{{.*}} to memref<2x32x16xf32, #gpu.address_space<workgroup>>
// CHECK: nvgpu.device_async_copy %arg0{{.*}}, 4 {bypassL1}
// CHECK: nvgpu.device_async_copy %arg1{{.*}}, 4 {bypassL1}
// CHECK: nvvm.cp.async.commit.group
// CHECK: scf.for %{{.*}} = %c0 to %c48 step %c16 iter_args
// CHECK: nvvm.cp.async.wait.group 0
// CHECK-NEXT: nvvm.bar.warp.sync
// CHECK: %[[INSIDE:.*]] = arith.cmpi slt, %{{.*}}, %c48
// CHECK: %[[COUNT:.*]] = arith.select %[[INSIDE]], %c4, %c0
// CHECK: nvgpu.device_async_copy %arg0{{.*}}, 4, %[[COUNT]] {bypassL1}
// CHECK: scf.for %{{.*}} = %c0 to %c16 step %c4 iter_args
// CHECK: %[[A:.*]] = vector.load {{.*}} {alignment = 16 : i64} : memref<2x32x16xf32, #gpu.address_space<workgroup>>
// CHECK: vector.extract %[[A]][0]
// CHECK: math.fma %{{.*}} : vector<4xf32>
// CHECK-NOT: nvgpu.mma.sync
// CHECK: gpu.launch_func @matmul_0_gpu::@matmul_0 blocks in (%c4, %c1, %c1) threads in (%c32, %c1, %c1)
func.func private @matmul_0(%a: tensor<64x48xf32>, %b: tensor<48x64xf32>) -> tensor<64x64xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = linalg.matmul ins(%a, %b : tensor<64x48xf32>, tensor<48x64xf32>) outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
