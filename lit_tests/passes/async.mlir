// RUN: %mlirc-opt %s --pass mlirc-async | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async | %mlirc-opt - | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute > %t.gpu.mlir
// RUN: %mlirc-opt %s --pass mlirc-async | %mlirc-opt - --pass mlirc-async --pass mlirc-distribute | diff - %t.gpu.mlir
// RUN: not %mlirc-opt %s --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=TILES

// The slices that the product of a K loop reads come through a ring of four slots, which one warp fills. Products of
// warpgroups are under way until the next iteration, so a slot is given back one iteration later, and the last one
// behind the loop. What is printed parses back, and is the same way down.
// CHECK-LABEL: func.func @product
// CHECK: %[[RING:.*]] = "mlirc.make_ring"() {copy = "tma", depth = 4 : i64, slots = [
// CHECK-SAME: {swizzle = 128 : i64, tile = tensor<128x64xbf16>}, {swizzle = 128 : i64, tile = tensor<64x64xbf16>}]}
// CHECK-NEXT: "mlirc.roles"() ({
// CHECK-NEXT: scf.for %[[K:.*]] = %c0 to %c256 step %c64 {
// CHECK-NEXT: %[[A:.*]] = tensor.extract_slice %arg0[%{{.*}}, %[[K]]] [128, 64]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[A]]) {tile = 0 : i64}
// CHECK-NEXT: %[[B:.*]] = tensor.extract_slice %arg1[%{{.*}}, %[[K]]] [64, 64]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[B]]) {tile = 1 : i64}
// CHECK: "mlirc.yield"() : () -> ()
// CHECK-NEXT: }, {
// CHECK: scf.for
// CHECK-NEXT: %[[TA:.*]] = "mlirc.get"(%[[RING]]) {tile = 0 : i64} : (!mlirc.ring) -> tensor<128x64xbf16>
// CHECK-NEXT: %[[TB:.*]] = "mlirc.get"(%[[RING]]) {tile = 1 : i64} : (!mlirc.ring) -> tensor<64x64xbf16>
// CHECK-NEXT: linalg.generic {{.*}} ins(%[[TA]], %[[TB]] {{.*}} attrs = {mlirc.mma = "wgmma"
// CHECK: "mlirc.release"(%[[RING]]) {lag = 1 : i64}
// CHECK-NEXT: scf.yield
// CHECK-NEXT: }
// CHECK-NEXT: "mlirc.release"(%[[RING]]) {lag = 0 : i64}
// CHECK: "mlirc.yield"(%{{.*}}) : (tensor<128x64xbf16>)
// CHECK-NEXT: }) {warps = array<i64: 1, 8>} : () -> tensor<128x64xbf16>
// CHECK: tensor.parallel_insert_slice

// TILES: error: kernel product: mlirc.producers: mlirc-async comes in front of this pass
func.func @product(%a: tensor<256x256xbf16>, %b: tensor<256x256xbf16>) -> tensor<256x256xbf16>
    attributes {mlirc.kernel, mlirc.warps = 8 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c256 = arith.constant 256 : index
  %e = tensor.empty() : tensor<256x256xbf16>
  %r = scf.forall (%i, %j) in (2, 4) shared_outs(%o = %e) -> (tensor<256x256xbf16>) {
    %m = affine.apply affine_map<(d0) -> (d0 * 128)>(%i)
    %n = affine.apply affine_map<(d0) -> (d0 * 64)>(%j)
    %ce = tensor.empty() : tensor<128x64xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<128x64xf32>) -> tensor<128x64xf32>
    %c = scf.for %k = %c0 to %c256 step %c64 iter_args(%acc = %cf) -> (tensor<128x64xf32>) {
      %ta = tensor.extract_slice %a[%m, %k] [128, 64] [1, 1] : tensor<256x256xbf16> to tensor<128x64xbf16>
      %tb = tensor.extract_slice %b[%n, %k] [64, 64] [1, 1] : tensor<256x256xbf16> to tensor<64x64xbf16>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<128x64xbf16>, tensor<64x64xbf16>) outs(%acc : tensor<128x64xf32>)
          attrs = {mlirc.mma = "wgmma", mlirc.copy = "tma", mlirc.warp_grid = array<i64: 8, 1>} {
      ^bb0(%x: bf16, %y: bf16, %s: f32):
        %xe = arith.extf %x : bf16 to f32
        %ye = arith.extf %y : bf16 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s, %xy : f32
        linalg.yield %t : f32
      } -> tensor<128x64xf32>
      scf.yield %p : tensor<128x64xf32>
    } {mlirc.stages = 4 : i32, mlirc.producers = 1 : i32}
    %de = tensor.empty() : tensor<128x64xbf16>
    %d = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
        iterator_types = ["parallel", "parallel"]} ins(%c : tensor<128x64xf32>) outs(%de : tensor<128x64xbf16>) {
    ^bb0(%x: f32, %y: bf16):
      %t = arith.truncf %x : f32 to bf16
      linalg.yield %t : bf16
    } -> tensor<128x64xbf16>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %d into %o[%m, %n] [128, 64] [1, 1] : tensor<128x64xbf16> into tensor<256x256xbf16>
    }
  } {mlirc.persist = 4 : i32, mlirc.store = "tma"}
  return %r : tensor<256x256xbf16>
}
