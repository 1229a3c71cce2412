// RUN: %mlirc-opt %s --target sm_90a --pass mlirc-async --pass mlirc-distribute | %filecheck %s

// Four panels of the right operand's rows along n, one of the left's along k; both swizzled.
// CHECK-LABEL: gpu.func @matmul_0
// CHECK: memref.view {{.*}} to memref<2x1x32x32xf32
// CHECK: memref.view {{.*}} to memref<2x4x32x32xf32
// A thread's elements are neighbours: two along k, four along n.
// CHECK: scf.for
// CHECK: vector.load {{.*}} vector<2xf32>
// CHECK: arith.addi %{{.*}}, %{{.*}} : vector<2xi32>
// CHECK: arith.andi
// CHECK: arith.subf
// CHECK: vector.load {{.*}} vector<4xf32>
// CHECK: nvgpu.mma.sync{{.*}} {mmaShape = [16, 8, 8], tf32Enabled} : (vector<4x1xf32>, vector<2x1xf32>, vector<2x2xf32>)
// Sums that are not finite are made again.
// CHECK: arith.cmpf uno
// CHECK: nvvm.vote.sync any
// CHECK: scf.if
// CHECK: math.fma
// CHECK: arith.addf

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func private @matmul_0(%a: tensor<32x256xf32>, %b: tensor<256x128xf32>) -> tensor<32x128xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul", mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x128xf32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<32x128xf32>) {
    %t = tensor.empty() : tensor<32x128xf32>
    %f = linalg.fill ins(%zero : f32) outs(%t : tensor<32x128xf32>) -> tensor<32x128xf32>
    %c0 = arith.constant 0 : index
    %c32 = arith.constant 32 : index
    %c256 = arith.constant 256 : index
    %p = scf.for %k = %c0 to %c256 step %c32 iter_args(%s = %f) -> (tensor<32x128xf32>) {
      %x = tensor.extract_slice %a[0, %k] [32, 32] [1, 1] : tensor<32x256xf32> to tensor<32x32xf32>
      %y = tensor.extract_slice %b[%k, 0] [32, 128] [1, 1] : tensor<256x128xf32> to tensor<32x128xf32>
      %g = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%x, %y : tensor<32x32xf32>, tensor<32x128xf32>) outs(%s : tensor<32x128xf32>)
          attrs = {mlirc.mma = "tf32x3", mlirc.warp_grid = array<i64: 1, 4>} {
      ^bb0(%u: f32, %v: f32, %w: f32):
        %uv = arith.mulf %u, %v : f32
        %z = arith.addf %w, %uv : f32
        linalg.yield %z : f32
      } -> tensor<32x128xf32>
      scf.yield %g : tensor<32x128xf32>
    } {mlirc.stages = 2 : i32}
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %p into %o[0, 0] [32, 128] [1, 1] : tensor<32x128xf32> into tensor<32x128xf32>
    }
  }
  return %r : tensor<32x128xf32>
}
