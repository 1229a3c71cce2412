// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %mlirc-opt - | %filecheck %s

// Copies run stages - 2 = 2 iterations ahead, because a product may still read the previous iteration's buffer; the
// proxy fence stands between the copies' arrival and the products; one group of products stays in flight.
// CHECK-LABEL: gpu.func @product
// CHECK: memref.view %{{.*}} to memref<4x64x64xbf16, #gpu.address_space<workgroup>>
// CHECK: nvvm.cp.async.commit.group
// CHECK: nvvm.cp.async.commit.group
// CHECK-NOT: nvvm.cp.async.commit.group
// CHECK: scf.for %{{.*}} = %c0 to %c256 step %c64 iter_args({{.*}}) -> (!llvm.struct<(f32,
// CHECK: nvvm.cp.async.wait.group 1
// CHECK-NEXT: nvvm.fence.proxy {kind = #nvvm.proxy_kind<async.shared>
// CHECK-NEXT: gpu.barrier
// CHECK: nvvm.cp.async.commit.group
// CHECK: arith.addi %{{.*}}, %c4611686293305360384_i64
// CHECK: nvvm.wgmma.fence.aligned
// CHECK: nvvm.wgmma.mma_async {{.*}}<m = 64, n = 64, k = 16>
// CHECK: nvvm.wgmma.mma_async
// CHECK: nvvm.wgmma.mma_async
// CHECK: nvvm.wgmma.mma_async
// CHECK-NEXT: nvvm.wgmma.commit.group.sync.aligned
// CHECK-NEXT: nvvm.wgmma.wait.group.sync.aligned 1
// CHECK: scf.yield
// CHECK: nvvm.wgmma.wait.group.sync.aligned 0
// CHECK: llvm.extractvalue
func.func @product(%a: tensor<256x256xbf16>, %b: tensor<256x256xbf16>) -> tensor<256x256xbf16>
    attributes {mlirc.kernel, mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c256 = arith.constant 256 : index
  %e = tensor.empty() : tensor<256x256xbf16>
  %r = scf.forall (%i, %j) in (4, 4) shared_outs(%o = %e) -> (tensor<256x256xbf16>) {
    %m = affine.apply affine_map<(d0) -> (d0 * 64)>(%i)
    %n = affine.apply affine_map<(d0) -> (d0 * 64)>(%j)
    %ce = tensor.empty() : tensor<64x64xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<64x64xf32>) -> tensor<64x64xf32>
    %c = scf.for %k = %c0 to %c256 step %c64 iter_args(%acc = %cf) -> (tensor<64x64xf32>) {
      %ta = tensor.extract_slice %a[%m, %k] [64, 64] [1, 1] : tensor<256x256xbf16> to tensor<64x64xbf16>
      %tb = tensor.extract_slice %b[%n, %k] [64, 64] [1, 1] : tensor<256x256xbf16> to tensor<64x64xbf16>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<64x64xbf16>, tensor<64x64xbf16>) outs(%acc : tensor<64x64xf32>)
          attrs = {mlirc.mma = "wgmma", mlirc.warp_grid = array<i64: 4, 1>} {
      ^bb0(%x: bf16, %y: bf16, %s: f32):
        %xe = arith.extf %x : bf16 to f32
        %ye = arith.extf %y : bf16 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s, %xy : f32
        linalg.yield %t : f32
      } -> tensor<64x64xf32>
      scf.yield %p : tensor<64x64xf32>
    } {mlirc.stages = 4 : i32}
    %de = tensor.empty() : tensor<64x64xbf16>
    %d = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]} ins(%c : tensor<64x64xf32>) outs(%de : tensor<64x64xbf16>) {
    ^bb0(%x: f32, %y: bf16):
      %t = arith.truncf %x : f32 to bf16
      linalg.yield %t : bf16
    } -> tensor<64x64xbf16>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[%m, %n] [64, 64] [1, 1] : tensor<64x64xbf16> into tensor<256x256xbf16>
    }
  } {mapping = [#gpu.block<y>, #gpu.block<x>]}
  return %r : tensor<256x256xbf16>
}
