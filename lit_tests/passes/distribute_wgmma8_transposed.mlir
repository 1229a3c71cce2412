// RUN: %mlirc-opt %s --target sm_90a --pass mlirc-async | %filecheck %s --check-prefix=RING
// RUN: %mlirc-opt %s --target sm_90a --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: sed -f %S/inputs/bytes_as_floats.sed %s | %mlirc-opt - --target sm_90a --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=FLOAT
// RUN: sed -e 's/mlirc.producers = 4 : i64, //; s/mlirc.copy = "tma", //' %s | not %mlirc-opt - --target sm_90a --pass mlirc-async --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=ALONE

// RING: mlirc.make_ring{{.*}}{swizzle = 128 : i64, tile = tensor<64x128xi8>}, {panels, rewrite = "transposed", swizzle = 128 : i64, tile = tensor<128x32xi8>}

// Slots of B as it is copied, and two of it with rows along k. A thread of the sums has four neighbouring columns.
// CHECK-LABEL: gpu.func @product
// CHECK-SAME: sums (w4 r2 l8:4) x (r2 l4 r4): 16 registers
// CHECK-SAME: B i8 in 3 slots of 128x128, rows swizzled over 128 bytes, transposed
// CHECK: memref.view {{.*}} to memref<3x64x128xi8
// CHECK: memref.view {{.*}} to memref<3x1x128x128xi8
// CHECK: memref.view {{.*}} to memref<2x128x128xi8
// CHECK: nvvm.wgmma.mma_async {{.*}}<m = 64, n = 32, k = 32>, D[<s32>, <one>], A[<s8>, <one>, <row>], B[<s8>, <one>, <col>]
// The product is under way while the next one's operands are waited for: its slot and what it was transposed to stay.
// CHECK: nvvm.wgmma.wait.group.sync.aligned 1
// CHECK: nvvm.cp.async.bulk.tensor
// The other warps wait until nobody reads the slot before last's, and until the copies are there.
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: nvvm.mbarrier.try_wait.parity
// CHECK: scf.for
// CHECK-COUNT-4: nvgpu.ldmatrix {{.*}} {numTiles = 4 : i32, transpose = true} : memref<3x1x128x64xi16, #gpu.address_space<workgroup>> -> vector<4x2xi16>
// CHECK-COUNT-4: nvvm.prmt <default>
// CHECK: nvvm.stmatrix {{.*}} : !llvm.ptr<3>, i32, i32, i32, i32
// CHECK: nvvm.fence.proxy
// CHECK: nvvm.mbarrier.arrive

// FLOAT-LABEL: gpu.func @product
// FLOAT: nvvm.wgmma.mma_async {{.*}}D[<f32>, <zero>], A[<e5m2>, <one>, <row>], B[<e5m2>, <one>, <col>]
// FLOAT: nvvm.wgmma.wait.group.sync.aligned 0
// FLOAT: arith.addf
// FLOAT: nvvm.stmatrix

// ALONE: wgmma8 has rows along m or n transposed beside a producer: specialize(loop, producers=4), or use mma8

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
func.func @product(%a: tensor<64x512xi8>, %b: tensor<512x32xi8>) -> tensor<64x32xi32>
    attributes {mlirc.kernel, mlirc.warps = 4 : i64} {
  %zero = arith.constant 0 : i32
  %c0 = arith.constant 0 : index
  %c128 = arith.constant 128 : index
  %c512 = arith.constant 512 : index
  %e = tensor.empty() : tensor<64x32xi32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<64x32xi32>) {
    %ce = tensor.empty() : tensor<64x32xi32>
    %cf = linalg.fill ins(%zero : i32) outs(%ce : tensor<64x32xi32>) -> tensor<64x32xi32>
    %p = scf.for %k = %c0 to %c512 step %c128 iter_args(%s = %cf) -> (tensor<64x32xi32>) {
      %x = tensor.extract_slice %a[0, %k] [64, 128] [1, 1] : tensor<64x512xi8> to tensor<64x128xi8>
      %y = tensor.extract_slice %b[%k, 0] [128, 32] [1, 1] : tensor<512x32xi8> to tensor<128x32xi8>
      %g = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%x, %y : tensor<64x128xi8>, tensor<128x32xi8>) outs(%s : tensor<64x32xi32>)
          attrs = {mlirc.mma = "wgmma8", mlirc.copy = "tma", mlirc.warp_grid = array<i64: 4, 1>} {
      ^bb0(%u: i8, %v: i8, %w: i32):
        %ue = arith.extsi %u : i8 to i32
        %ve = arith.extsi %v : i8 to i32
        %uv = arith.muli %ue, %ve : i32
        %z = arith.addi %w, %uv : i32
        linalg.yield %z : i32
      } -> tensor<64x32xi32>
      scf.yield %g : tensor<64x32xi32>
    } {mlirc.producers = 4 : i64, mlirc.stages = 3 : i64}
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %p into %o[0, 0] [64, 32] [1, 1] : tensor<64x32xi32> into tensor<64x32xi32>
    }
  }
  return %r : tensor<64x32xi32>
}
