// RUN: %mlirc-opt %s --pass mlirc-loops | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-loops{stage=parallel}' | %filecheck %s --check-prefix=CPU

// The first bytes of two arguments are brought into the L2 cache by blocks behind those of the map, one launch: 4,001
// lines by eight of each thread, and two lines by a block of their own. The CPU's levels have nothing of it.
// CHECK-LABEL: gpu.func @bundle_0_0
// CHECK: memref.store
// CHECK-COUNT-7: memref.prefetch %{{.*}}, read, locality<2>, data : memref<512x512xbf16>
// CHECK: arith.cmpi ult, %{{.*}}, %c4001
// CHECK: memref.prefetch %{{.*}} : memref<512x512xbf16>
// CHECK-COUNT-2: memref.prefetch %{{.*}} : memref<300xf32>
// CHECK-NOT: memref.prefetch
// CHECK: gpu.launch_func @bundle_0_gpu::@bundle_0_0 blocks in (%c7,
// CHECK-NOT: gpu.launch_func
// CPU-NOT: memref.prefetch
func.func private @bundle_0(%x: tensor<129xf32>, %w: tensor<512x512xbf16>, %v: tensor<300xf32>) -> tensor<129xf32>
    attributes {mlirc.kernel, mlirc.lowering = "loops", mlirc.threads = 128 : i32,
                mlirc.prefetch = array<i64: 1, 512128, 2, 256>} {
  %e = tensor.empty() : tensor<129xf32>
  %g = linalg.abs ins(%x : tensor<129xf32>) outs(%e : tensor<129xf32>) -> tensor<129xf32>
  return %g : tensor<129xf32>
}
