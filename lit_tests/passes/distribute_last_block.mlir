// RUN: %mlirc-opt %s --script 'matmul:parts=3,mma=fma,block_m=16,block_n=16,block_k=8,combine=last' --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: %mlirc-opt %s --script 'matmul:parts=3,mma=fma,block_m=16,block_n=16,block_k=8,combine=launch' --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=LAUNCH

// One launch of 2 x 2 tiles in 3 parts: a block stores its part, and draws a number of its tile's counter. Who draws the
// last one, behind which the counter begins again at 0, reads all parts, and stores the result.

// CHECK: llvm.mlir.global internal @[[COUNTERS:.*]](dense<0> : tensor<4xi32>) {addr_space = 1 : i32} : !llvm.array<4 x i32>
// CHECK: gpu.func
// CHECK: %[[ALL:.*]] = llvm.mlir.addressof @[[COUNTERS]] : !llvm.ptr<1>
// CHECK: store {{.*}} : memref<2x2x3x16x16xf32>
// CHECK: gpu.barrier
// CHECK: scf.if
// CHECK: %[[MINE:.*]] = llvm.getelementptr %[[ALL]][%{{.*}}]
// CHECK: %[[NUMBER:.*]] = llvm.atomicrmw uinc_wrap %[[MINE]], %[[LAST:.*]] syncscope("device") acq_rel
// CHECK: memref.store %[[NUMBER]], %[[SLOT:.*]][
// CHECK: gpu.barrier
// CHECK: %[[SEEN:.*]] = memref.load %[[SLOT]][
// CHECK: %[[IS_LAST:.*]] = arith.cmpi eq, %[[SEEN]], %[[LAST]] : i32
// CHECK: scf.if %[[IS_LAST]] {
// CHECK: load {{.*}} : memref<2x2x3x16x16xf32>
// CHECK: store {{.*}} : memref<20x19xf32>
// CHECK: gpu.return
// CHECK: gpu.launch_func
// CHECK-NOT: gpu.launch_func
// LAUNCH-NOT: llvm.atomicrmw
// LAUNCH: gpu.launch_func
// LAUNCH: gpu.launch_func

func.func @matmul_0(%x: tensor<20x30xf32>, %w: tensor<19x30xf32>) -> tensor<20x19xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<20x19xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<20x19xf32>) -> tensor<20x19xf32>
  %r = linalg.generic {
    indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction"]
  } ins(%x, %w : tensor<20x30xf32>, tensor<19x30xf32>) outs(%f : tensor<20x19xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  } -> tensor<20x19xf32>
  return %r : tensor<20x19xf32>
}
