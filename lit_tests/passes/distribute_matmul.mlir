// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %mlirc-opt - | %filecheck %s

// A pipelined K loop: stages - 1 = 2 groups of 16-byte copies in front; in an iteration one wait, one barrier, the next
// group, then ldmatrix (swizzled) and mma.sync on accumulators that the loop carries.
// CHECK-LABEL: gpu.func @product
// CHECK-SAME: mlirc.smem = 24576 : i32
// CHECK: memref.view %{{.*}} to memref<3x64x32xbf16, #gpu.address_space<workgroup>>
// CHECK: arith.xori
// CHECK: nvgpu.device_async_copy %arg0{{.*}}, 8 {bypassL1}
// CHECK: nvgpu.device_async_copy %arg1{{.*}}, 8 {bypassL1}
// CHECK: nvvm.cp.async.commit.group
// CHECK: nvvm.cp.async.commit.group
// CHECK: scf.for %{{.*}} = %c0 to %c128 step %c32 iter_args({{.*}}) -> (vector<2x2xf32>
// CHECK-NEXT: arith.divui
// CHECK: nvvm.cp.async.wait.group 1
// CHECK-NEXT: gpu.barrier
// CHECK: nvgpu.device_async_copy
// CHECK: nvvm.cp.async.commit.group
// CHECK: nvgpu.ldmatrix %{{.*}} {numTiles = 4 : i32, transpose = false}
// CHECK: nvgpu.mma.sync(%{{.*}}) {mmaShape = [16, 8, 16]} : (vector<4x2xbf16>, vector<2x2xbf16>, vector<2x2xf32>)
// CHECK: scf.yield
// CHECK: nvvm.cp.async.wait.group 0
// CHECK: arith.truncf %{{.*}} : vector<2xf32> to vector<2xbf16>
// CHECK: vector.store %{{.*}}, %arg2{{.*}} {alignment = 4 : i64}
func.func @product(%a: tensor<128x128xbf16>, %b: tensor<128x128xbf16>) -> tensor<128x128xbf16>
    attributes {mlirc.kernel, mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %c128 = arith.constant 128 : index
  %e = tensor.empty() : tensor<128x128xbf16>
  %r = scf.forall (%i, %j) in (2, 2) shared_outs(%o = %e) -> (tensor<128x128xbf16>) {
    %m = affine.apply affine_map<(d0) -> (d0 * 64)>(%i)
    %n = affine.apply affine_map<(d0) -> (d0 * 64)>(%j)
    %ce = tensor.empty() : tensor<64x64xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<64x64xf32>) -> tensor<64x64xf32>
    %c = scf.for %k = %c0 to %c128 step %c32 iter_args(%acc = %cf) -> (tensor<64x64xf32>) {
      %ta = tensor.extract_slice %a[%m, %k] [64, 32] [1, 1] : tensor<128x128xbf16> to tensor<64x32xbf16>
      %tb = tensor.extract_slice %b[%n, %k] [64, 32] [1, 1] : tensor<128x128xbf16> to tensor<64x32xbf16>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<64x32xbf16>, tensor<64x32xbf16>) outs(%acc : tensor<64x64xf32>)
          attrs = {mlirc.mma = "mma", mlirc.warp_grid = array<i64: 2, 2>} {
      ^bb0(%x: bf16, %y: bf16, %s: f32):
        %xe = arith.extf %x : bf16 to f32
        %ye = arith.extf %y : bf16 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s, %xy : f32
        linalg.yield %t : f32
      } -> tensor<64x64xf32>
      scf.yield %p : tensor<64x64xf32>
    } {mlirc.stages = 3 : i32}
    %de = tensor.empty() : tensor<64x64xbf16>
    %d = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]} ins(%c : tensor<64x64xf32>) outs(%de : tensor<64x64xbf16>) {
    ^bb0(%x: f32, %y: bf16):
      %t = arith.truncf %x : f32 to bf16
      linalg.yield %t : bf16
    } -> tensor<64x64xbf16>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[%m, %n] [64, 64] [1, 1] : tensor<64x64xbf16> into tensor<128x128xbf16>
    }
  } {mapping = [#gpu.block<y>, #gpu.block<x>]}
  return %r : tensor<128x128xbf16>
}
