// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %mlirc-opt - | %filecheck %s

// A's rows run along m and B's along n: each lies in panels of 64 columns with the slice's 64 rows of k, one panel after
// the other, whose rows are permuted. Descriptors step from panel to panel by 8192 bytes and between slices of k by 2048;
// both operands are transposed.
// CHECK-LABEL: gpu.func @product
// CHECK-DAG: memref.view %{{.*}} to memref<4x1x64x64xbf16, #gpu.address_space<workgroup>>
// CHECK-DAG: memref.view %{{.*}} to memref<4x2x64x64xbf16, #gpu.address_space<workgroup>>
// CHECK: scf.for %{{.*}} = %c0 to %c256 step %c64 iter_args({{.*}}) -> (!llvm.struct<(f32,
// CHECK: arith.addi %{{.*}}, %c4611686293338849280_i64
// CHECK: nvvm.wgmma.mma_async {{.*}}<m = 64, n = 128, k = 16>{{.*}}A[{{.*}}<col>]{{.*}}B[{{.*}}<row>]
// CHECK: arith.addi %{{.*}}, %c4611686293338849408_i64
func.func @product(%a: tensor<256x256xbf16>, %b: tensor<256x256xbf16>) -> tensor<256x256xbf16>
    attributes {mlirc.kernel, mlirc.warps = 4 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c256 = arith.constant 256 : index
  %e = tensor.empty() : tensor<256x256xbf16>
  %r = scf.forall (%i, %j) in (4, 2) shared_outs(%o = %e) -> (tensor<256x256xbf16>) {
    %m = affine.apply affine_map<(d0) -> (d0 * 64)>(%i)
    %n = affine.apply affine_map<(d0) -> (d0 * 128)>(%j)
    %ce = tensor.empty() : tensor<64x128xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<64x128xf32>) -> tensor<64x128xf32>
    %c = scf.for %k = %c0 to %c256 step %c64 iter_args(%acc = %cf) -> (tensor<64x128xf32>) {
      %ta = tensor.extract_slice %a[%k, %m] [64, 64] [1, 1] : tensor<256x256xbf16> to tensor<64x64xbf16>
      %tb = tensor.extract_slice %b[%k, %n] [64, 128] [1, 1] : tensor<256x256xbf16> to tensor<64x128xbf16>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (k, m)>, affine_map<(m, n, k) -> (k, n)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<64x64xbf16>, tensor<64x128xbf16>) outs(%acc : tensor<64x128xf32>)
          attrs = {mlirc.mma = "wgmma", mlirc.warp_grid = array<i64: 4, 1>} {
      ^bb0(%x: bf16, %y: bf16, %s: f32):
        %xe = arith.extf %x : bf16 to f32
        %ye = arith.extf %y : bf16 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s, %xy : f32
        linalg.yield %t : f32
      } -> tensor<64x128xf32>
      scf.yield %p : tensor<64x128xf32>
    } {mlirc.stages = 4 : i32}
    %de = tensor.empty() : tensor<64x128xbf16>
    %d = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]} ins(%c : tensor<64x128xf32>) outs(%de : tensor<64x128xbf16>) {
    ^bb0(%x: f32, %y: bf16):
      %t = arith.truncf %x : f32 to bf16
      linalg.yield %t : bf16
    } -> tensor<64x128xbf16>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[%m, %n] [64, 128] [1, 1] : tensor<64x128xbf16> into tensor<256x256xbf16>
    }
  } {mapping = [#gpu.block<y>, #gpu.block<x>]}
  return %r : tensor<256x256xbf16>
}
