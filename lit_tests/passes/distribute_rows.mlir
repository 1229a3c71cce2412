// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// Elementwise: 16-byte accesses, a masked edge, one launch per forall, results as trailing arguments.
// CHECK-LABEL: gpu.func @scale(%arg0: memref<5x64xf32>, %arg1: memref<5x64xf32>) kernel
// CHECK-SAME: known_block_size = array<i32: 64, 1, 1>
// CHECK: %[[V:.*]] = vector.load %arg0{{.*}} {alignment = 16 : i64} : memref<5x64xf32>, vector<4xf32>
// CHECK: %[[S:.*]] = arith.mulf %[[V]], %{{.*}} : vector<4xf32>
// CHECK: scf.if
// CHECK-NEXT: vector.store %[[S]], %arg1{{.*}} {alignment = 16 : i64}
// CHECK-NOT: gpu.barrier
// CHECK-LABEL: func.func @scale(%arg0: memref<5x64xf32>, %arg1: memref<5x64xf32>) attributes {mlirc.kernel
// CHECK: gpu.launch_func @scale_gpu::@scale blocks in (%c2, %c1, %c1) threads in (%c64, %c1, %c1)
func.func @scale(%x: tensor<5x64xf32>) -> tensor<5x64xf32> attributes {mlirc.kernel, mlirc.warps = 2 : i32} {
  %two = arith.constant 2.0 : f32
  %e = tensor.empty() : tensor<5x64xf32>
  %r = scf.forall (%i) in (2) shared_outs(%o = %e) -> (tensor<5x64xf32>) {
    %at = affine.apply affine_map<(d0) -> (d0 * 4)>(%i)
    %n = affine.min affine_map<(d0) -> (d0 * -4 + 5, 4)>(%i)
    %t = tensor.extract_slice %x[%at, 0] [%n, 64] [1, 1] : tensor<5x64xf32> to tensor<?x64xf32>
    %d = tensor.empty(%n) : tensor<?x64xf32>
    %s = linalg.generic {indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a, b)>],
        iterator_types = ["parallel", "parallel"]} ins(%t : tensor<?x64xf32>) outs(%d : tensor<?x64xf32>) {
    ^bb0(%u: f32, %v: f32):
      %m = arith.mulf %u, %two : f32
      linalg.yield %m : f32
    } -> tensor<?x64xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%at, 0] [%n, 64] [1, 1] : tensor<?x64xf32> into tensor<5x64xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<5x64xf32>
}
// -----
// A row sum: in the thread, by shuffles within the warp, through shared memory across warps, in front of whose first use
// there is no barrier.
// CHECK-LABEL: gpu.func @sums
// CHECK-SAME: mlirc.smem = 16 : i32
// CHECK: arith.addf %{{.*}}, %{{.*}} : vector<4xf32>
// CHECK: gpu.shuffle xor %{{.*}}, %c1_i32
// CHECK: gpu.shuffle xor %{{.*}}, %c16_i32
// CHECK-NOT: gpu.barrier
// CHECK: scf.if
// CHECK: memref.store %{{.*}} #gpu.address_space<workgroup>>
// CHECK: gpu.barrier
// CHECK-COUNT-4: memref.load %{{.*}} #gpu.address_space<workgroup>>
// CHECK: memref.store %{{.*}}, %arg1
func.func @sums(%x: tensor<3x1024xf32>) -> tensor<3xf32> attributes {mlirc.kernel, mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3xf32>
  %r = scf.forall (%i) in (3) shared_outs(%o = %e) -> (tensor<3xf32>) {
    %t = tensor.extract_slice %x[%i, 0] [1, 1024] [1, 1] : tensor<3x1024xf32> to tensor<1x1024xf32>
    %d = tensor.empty() : tensor<1xf32>
    %f = linalg.fill ins(%zero : f32) outs(%d : tensor<1xf32>) -> tensor<1xf32>
    %s = linalg.generic {indexing_maps = [affine_map<(a, b) -> (a, b)>, affine_map<(a, b) -> (a)>],
        iterator_types = ["parallel", "reduction"]} ins(%t : tensor<1x1024xf32>) outs(%f : tensor<1xf32>) {
    ^bb0(%u: f32, %v: f32):
      %m = arith.addf %v, %u : f32
      linalg.yield %m : f32
    } -> tensor<1xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%i] [1] [1] : tensor<1xf32> into tensor<3xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<3xf32>
}
