// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: sed -e 's/"wgmma8"/"wgmma8_fast"/' %s | %mlirc-opt - --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=FAST

// The sums of a slice are made from zero, waited for, and added to the running ones in f32.
// CHECK-LABEL: gpu.func @product
// CHECK: memref.view %{{.*}} to memref<3x64x128xf8E4M3FN, #gpu.address_space<workgroup>>
// CHECK: scf.for {{.*}} -> (!llvm.struct<(f32,
// CHECK: nvvm.wgmma.fence.aligned
// CHECK: nvvm.wgmma.mma_async {{.*}}<m = 64, n = 32, k = 32>, D[<f32>, <zero>], A[<e4m3>, <one>, <row>], B[<e5m2>
// CHECK-COUNT-3: nvvm.wgmma.mma_async {{.*}}D[<f32>, <one>]
// CHECK-NEXT: nvvm.wgmma.commit.group.sync.aligned
// CHECK-NEXT: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK-COUNT-16: arith.addf
// CHECK-NOT: arith.addf
// CHECK: scf.yield

// FAST-LABEL: gpu.func @product
// FAST-COUNT-4: nvvm.wgmma.mma_async {{.*}}D[<f32>, <one>]
// FAST-NEXT: nvvm.wgmma.commit.group.sync.aligned
// FAST-NEXT: nvvm.wgmma.wait.group.sync.aligned 1
// FAST-NOT: arith.addf
func.func @product(%a: tensor<64x512xf8E4M3FN>, %b: tensor<32x512xf8E5M2>) -> tensor<64x32xf32>
    attributes {mlirc.kernel, mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c128 = arith.constant 128 : index
  %c512 = arith.constant 512 : index
  %e = tensor.empty() : tensor<64x32xf32>
  %r = scf.forall (%i) in (1) shared_outs(%o = %e) -> (tensor<64x32xf32>) {
    %ce = tensor.empty() : tensor<64x32xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<64x32xf32>) -> tensor<64x32xf32>
    %c = scf.for %k = %c0 to %c512 step %c128 iter_args(%acc = %cf) -> (tensor<64x32xf32>) {
      %ta = tensor.extract_slice %a[0, %k] [64, 128] [1, 1] : tensor<64x512xf8E4M3FN> to tensor<64x128xf8E4M3FN>
      %tb = tensor.extract_slice %b[0, %k] [32, 128] [1, 1] : tensor<32x512xf8E5M2> to tensor<32x128xf8E5M2>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<64x128xf8E4M3FN>, tensor<32x128xf8E5M2>) outs(%acc : tensor<64x32xf32>)
          attrs = {mlirc.mma = "wgmma8", mlirc.warp_grid = array<i64: 4, 1>} {
      ^bb0(%x: f8E4M3FN, %y: f8E5M2, %s: f32):
        %xe = arith.extf %x : f8E4M3FN to f32
        %ye = arith.extf %y : f8E5M2 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s, %xy : f32
        linalg.yield %t : f32
      } -> tensor<64x32xf32>
      scf.yield %p : tensor<64x32xf32>
    } {mlirc.stages = 3 : i32}
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %c into %o[0, 0] [64, 32] [1, 1] : tensor<64x32xf32> into tensor<64x32xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<64x32xf32>
}
