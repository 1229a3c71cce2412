// RUN: %mlirc-opt %s --pass mlirc-async | %filecheck %s
// RUN: %mlirc-opt %s --pass mlirc-async --pass mlirc-distribute | %filecheck %s --check-prefix=GPU
// RUN: sed -e 's/%c257 step/%c192 step/' %s | %mlirc-opt - --pass mlirc-async | %filecheck %s --check-prefix=SHORT

// Rows of 257 bf16, of which no cp.async takes one: the next iteration's slices are read into registers at the start of
// each, and put at its end, into the other one of two slots. Behind the last one no slice begins: the last is read again.
// CHECK-LABEL: func.func @product
// CHECK: %[[RING:.*]] = "mlirc.make_ring"() {copy = "registers", depth = 2 : i64
// CHECK: tensor.extract_slice %arg0[0, %c0{{.*}}]
// CHECK-NEXT: "mlirc.put"(%[[RING]], %{{.*}}) {tile = 0 : i64}
// CHECK: "mlirc.put"(%[[RING]], %{{.*}}) {tile = 1 : i64}
// CHECK: scf.for %[[K:[a-z0-9]*]] =
// CHECK: %[[TA:.*]] = "mlirc.get"(%[[RING]], %{{.*}}) {tile = 0 : i64}
// CHECK: %[[TB:.*]] = "mlirc.get"(%[[RING]], %{{.*}}) {tile = 1 : i64}
// CHECK: %[[THEN:.*]] = affine.min {{.*}}(%[[K]])
// CHECK: %[[A:.*]] = tensor.extract_slice %arg0[0, %[[THEN]]]
// CHECK: %[[B:.*]] = tensor.extract_slice %arg1[%{{.*}}, %[[THEN]]]
// CHECK: linalg.generic {{.*}} ins(%[[TA]], %[[TB]]
// CHECK: "mlirc.put"(%[[RING]], %[[A]]) {tile = 0 : i64}
// CHECK-NEXT: "mlirc.put"(%[[RING]], %[[B]]) {tile = 1 : i64}
// CHECK-NEXT: "mlirc.release"(%[[RING]]) {lag = 0 : i64}
// CHECK-NEXT: scf.yield

// All loads in front of the products, one barrier, and stores of four bytes behind them.
// GPU: scf.for
// GPU: memref.load %{{.*}}memref<16x257xbf16>
// GPU: gpu.barrier
// GPU-NOT: gpu.barrier
// GPU-NOT: memref<16x257xbf16>
// GPU: nvgpu.mma.sync
// GPU: vector.store {{.*}}vector<2xbf16>
// GPU-NOT: gpu.barrier
// GPU: scf.yield

// Three steps are too few.
// SHORT: depth = 1
func.func @product(%a: tensor<16x257xbf16>, %b: tensor<32x257xbf16>) -> tensor<16x32xf32>
    attributes {mlirc.kernel, mlirc.warps = 2 : i32} {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c64 = arith.constant 64 : index
  %c192 = arith.constant 192 : index
  %c257 = arith.constant 257 : index
  %e = tensor.empty() : tensor<16x32xf32>
  %r = scf.forall (%i) in (2) shared_outs(%o = %e) -> (tensor<16x32xf32>) {
    %n = affine.apply affine_map<(d0) -> (d0 * 16)>(%i)
    %ce = tensor.empty() : tensor<16x16xf32>
    %cf = linalg.fill ins(%zero : f32) outs(%ce : tensor<16x16xf32>) -> tensor<16x16xf32>
    %c = scf.for %k = %c0 to %c257 step %c64 iter_args(%acc = %cf) -> (tensor<16x16xf32>) {
      %s = affine.min affine_map<(d0) -> (-d0 + 257, 64)>(%k)
      %ta = tensor.extract_slice %a[0, %k] [16, %s] [1, 1] : tensor<16x257xbf16> to tensor<16x?xbf16>
      %tb = tensor.extract_slice %b[%n, %k] [16, %s] [1, 1] : tensor<32x257xbf16> to tensor<16x?xbf16>
      %p = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%ta, %tb : tensor<16x?xbf16>, tensor<16x?xbf16>) outs(%acc : tensor<16x16xf32>)
          attrs = {mlirc.mma = "mma", mlirc.warp_grid = array<i64: 1, 2>} {
      ^bb0(%x: bf16, %y: bf16, %s0: f32):
        %xe = arith.extf %x : bf16 to f32
        %ye = arith.extf %y : bf16 to f32
        %xy = arith.mulf %xe, %ye : f32
        %t = arith.addf %s0, %xy : f32
        linalg.yield %t : f32
      } -> tensor<16x16xf32>
      scf.yield %p : tensor<16x16xf32>
    } {mlirc.stages = 3 : i32}
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %c into %o[0, %n] [16, 16] [1, 1] : tensor<16x16xf32> into tensor<16x32xf32>
    }
  }
  return %r : tensor<16x32xf32>
}
