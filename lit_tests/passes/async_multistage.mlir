// RUN: %mlirc-opt %s --pass mlirc-async | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async | %mlirc-opt - | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute > %t.gpu.mlir
// RUN: %mlirc-opt %s --pass mlirc-async | %mlirc-opt - --pass mlirc-async --pass mlirc-distribute | diff - %t.gpu.mlir
// RUN: %filecheck %s --check-prefix=GPU --input-file %t.gpu.mlir
// RUN: not %mlirc-opt %s --pass mlirc-distribute 2>&1 | %filecheck %s --check-prefix=TILES
// RUN: sed -e 's/ 1] : tensor<64x256/ 1] {mlirc.copy = "registers"} : tensor<64x256/' %s | %mlirc-opt - --pass mlirc-async | %filecheck %s --check-prefix=STORED

// The slices of a K loop without producers come through a ring of three slots that the warps fill which compute, two
// iterations ahead: two puts of each operand in front of the loop, one in it that has a condition. What is printed parses
// back, and is the same way down: groups of cp.async, and one barrier an iteration.
// CHECK-LABEL: func.func @product
// CHECK: %[[RING:.*]] = "mlirc.make_ring"() {copy = "cp_async", depth = 3 : i64, slots = [
// CHECK-SAME: {swizzle = 128 : i64, tile = tensor<32x64xbf16>}, {swizzle = 128 : i64, tile = tensor<32x64xbf16>}]}
// CHECK-NEXT: %[[A0:.*]] = tensor.extract_slice %arg0[%{{.*}}, %c0]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[A0]]) {tile = 0 : i64}
// CHECK-NEXT: %[[B0:.*]] = tensor.extract_slice %arg1[%{{.*}}, %c0]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[B0]]) {tile = 1 : i64}
// CHECK: %[[A1:.*]] = tensor.extract_slice %arg0[%{{.*}}, %c64{{.*}}]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[A1]]) {tile = 0 : i64}
// CHECK: scf.for %[[K:[a-z0-9]*]] =
// CHECK-NEXT: %[[TA:.*]] = "mlirc.get"(%[[RING]]) {tile = 0 : i64} : (!mlirc.ring) -> tensor<32x64xbf16>
// CHECK-NEXT: %[[TB:.*]] = "mlirc.get"(%[[RING]]) {tile = 1 : i64} : (!mlirc.ring) -> tensor<32x64xbf16>
// CHECK-NEXT: %[[THEN:.*]] = affine.apply {{.*}}(%[[K]])
// CHECK-NEXT: %[[MORE:.*]] = arith.cmpi slt, %[[THEN]], %c256
// CHECK-NEXT: %[[A:.*]] = tensor.extract_slice %arg0[%{{.*}}, %[[THEN]]]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[A]], %[[MORE]]) {tile = 0 : i64}
// CHECK-NEXT: %[[B:.*]] = tensor.extract_slice %arg1[%{{.*}}, %[[THEN]]]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[B]], %[[MORE]]) {tile = 1 : i64}
// CHECK-NEXT: linalg.generic {{.*}} ins(%[[TA]], %[[TB]] {{.*}} attrs = {mlirc.mma = "mma"
// CHECK: "mlirc.release"(%[[RING]]) {lag = 0 : i64}
// CHECK-NEXT: scf.yield
// CHECK-NOT: mlirc.stages

// GPU-LABEL: gpu.func @product
// GPU: gpu.barrier
// GPU: nvvm.cp.async.commit.group
// GPU: nvvm.cp.async.commit.group
// GPU: scf.for
// GPU: nvvm.cp.async.wait.group 1
// GPU-NEXT: gpu.barrier
// GPU: nvgpu.device_async_copy
// GPU: nvvm.cp.async.commit.group
// GPU-NOT: gpu.barrier
// GPU: nvgpu.mma.sync
// GPU-NOT: gpu.barrier
// GPU: scf.yield
// GPU: nvvm.cp.async.wait.group 0

// TILES: error: kernel product: mlirc.stages: mlirc-async comes in front of this pass

// One operand through registers: it is put where its slice stands, and got behind that.
// STORED: %[[RING:.*]] = "mlirc.make_ring"() {copy = "cp_async", depth = 3
// STORED: %[[STORED:.*]] = "mlirc.make_ring"() {copy = "registers", depth = 2 : i64, slots = [{swizzle = 128 : i64, tile = tensor<32x64xbf16>}]}
// STORED: scf.for
// STORED: "mlirc.get"(%[[RING]]) {tile = 0 : i64}
// STORED: "mlirc.put"(%[[RING]], %{{.*}}, %{{.*}}) {tile = 0 : i64}
// STORED: %[[A:.*]] = tensor.extract_slice %arg0
// STORED-NEXT: "mlirc.put"(%[[STORED]], %[[A]]) {tile = 0 : i64}
// STORED-NEXT: %[[TA:.*]] = "mlirc.get"(%[[STORED]]) {tile = 0 : i64}
// STORED: linalg.generic {{.*}} ins(%[[TA]],
// STORED: "mlirc.release"(%[[RING]]) {lag = 0 : i64}
// STORED-NEXT: "mlirc.release"(%[[STORED]]) {lag = 0 : i64}
func.func @product(%a: tensor<64x256xbf16>, %b: tensor<128x256xbf16>) -> tensor<64x128xf32>
    attributes {mlirc.kernel, mlirc.warps = 2 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c256 = arith.constant 256 : index
  %e = tensor.empty() : tensor<64x128xf32>
  %r = scf.forall (%i, %j) in (2, 4) shared_outs(%o = %e) -> (tensor<64x128xf32>) {
    %m = affine.apply affine_map<(d0) -> (d0 * 32)>(%i)
    %n = affine.apply affine_map<(d0) -> (d0 * 32)>(%j)
    %ce = tensor.empty() : tensor<32x32xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<32x32xf32>) -> tensor<32x32xf32>
    %c = scf.for %k = %c0 to %c256 step %c64 iter_args(%acc = %cf) -> (tensor<32x32xf32>) {
      %ta = tensor.extract_slice %a[%m, %k] [32, 64] [1, 1] : tensor<64x256xbf16> to tensor<32x64xbf16>
      %tb = tensor.extract_slice %b[%n, %k] [32, 64] [1, 1] : tensor<128x256xbf16> to tensor<32x64xbf16>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<32x64xbf16>, tensor<32x64xbf16>) outs(%acc : tensor<32x32xf32>)
          attrs = {mlirc.mma = "mma", mlirc.warp_grid = array<i64: 1, 2>} {
      ^bb0(%x: bf16, %y: bf16, %s: f32):
        %xe = arith.extf %x : bf16 to f32
        %ye = arith.extf %y : bf16 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s, %xy : f32
        linalg.yield %t : f32
      } -> tensor<32x32xf32>
      scf.yield %p : tensor<32x32xf32>
    } {mlirc.stages = 3 : i32}
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %c into %o[%m, %n] [32, 32] [1, 1] : tensor<32x32xf32> into tensor<64x128xf32>
    }
  }
  return %r : tensor<64x128xf32>
}
