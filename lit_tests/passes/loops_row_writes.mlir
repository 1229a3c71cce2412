// RUN: %mlirc-opt %s --pass mlirc-loops | %filecheck %s

// Rows that go to places of their own are written in parallel, those of a negative index not at all, and what computes
// them is computed there. A second write that does not depend on the first has other blocks of the same launch.
// CHECK-LABEL: gpu.func @bundle_0_0
// CHECK-SAME: known_block_size = array<i32: 32, 1, 1>
// CHECK: %[[BLOCK:.*]] = gpu.block_id x
// CHECK: %[[FIRST:.*]] = arith.cmpi ult, %[[BLOCK]], %c2
// CHECK: scf.if %[[FIRST]]
// CHECK: memref.load %{{.*}} : memref<5x1xi64>
// CHECK: %[[WRITTEN:.*]] = arith.cmpi sge
// CHECK: scf.if %[[WRITTEN]]
// CHECK: %[[VALUE:.*]] = arith.negf
// CHECK: arith.cmpi ult, %{{.*}}, %c9
// CHECK: memref.store %[[VALUE]], %{{.*}} : memref<9x7xf32>
// CHECK: %[[SECOND:.*]] = arith.cmpi uge, %{{.*}}, %c2
// CHECK: scf.if %[[SECOND]]
// CHECK: memref.store %{{.*}} : memref<9x3xf32>
// CHECK: gpu.return
// CHECK-NOT: gpu.func
// CHECK-LABEL: func.func private @bundle_0(
// CHECK-NOT: memref.alloc
// CHECK: memref.copy
// CHECK: memref.copy
// CHECK: gpu.launch_func @bundle_0_gpu::@bundle_0_0 blocks in (%c3,
func.func private @bundle_0(%x: tensor<35xf32>, %y: tensor<5x3xf32>, %i: tensor<5x1xi64>, %p: tensor<9x7xf32>,
    %q: tensor<9x3xf32>) -> (tensor<9x7xf32>, tensor<9x3xf32>)
    attributes {mlirc.kernel, mlirc.lowering = "loops", mlirc.threads = 32 : i32} {
  %e = tensor.empty() : tensor<35xf32>
  %g = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<35xf32>) outs(%e : tensor<35xf32>) {
  ^bb0(%a: f32, %o: f32):
    %n = arith.negf %a : f32
    linalg.yield %n : f32
  } -> tensor<35xf32>
  %rows = tensor.expand_shape %g [[0, 1]] output_shape [5, 7] : tensor<35xf32> into tensor<5x7xf32>
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true)
      ins(%rows, %i : tensor<5x7xf32>, tensor<5x1xi64>) outs(%p : tensor<9x7xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<9x7xf32>
  %s = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true)
      ins(%y, %i : tensor<5x3xf32>, tensor<5x1xi64>) outs(%q : tensor<9x3xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<9x3xf32>
  return %r, %s : tensor<9x7xf32>, tensor<9x3xf32>
}
