// RUN: %mlirc-opt %s --script 'matmul:parts=3,mma=fma,block_m=16,block_n=16,block_k=8' | %filecheck %s
// RUN: %mlirc-opt %s --script 'matmul:parts=3,mma=fma,block_m=16,block_n=16,block_k=8,combine=last' | %filecheck %s --check-prefix=LAST

// Two launches: the first one writes the sums of 3 parts of K of 2 x 2 tiles, which have room for a whole tile each; the
// second one reads all parts of rows of a tile.

// CHECK-LABEL: func.func @matmul_0
// CHECK: %[[PARTS:.*]] = scf.forall (%[[I:.*]], %[[J:.*]], %[[P:.*]]) in (2, 2, 3) shared_outs(%[[OUT:.*]] = %{{.*}}) -> (tensor<2x2x3x16x16xf32>)
// CHECK: %[[LOOP:.*]] = scf.for
// CHECK: tensor.parallel_insert_slice %[[LOOP]] into %[[OUT]][%[[I]], %[[J]], %[[P]], 0, 0] [1, 1, 1, %{{.*}}, %{{.*}}]
// CHECK: %[[DONE:.*]] = scf.forall (%[[I:.*]], %[[J:.*]], %[[Q:.*]]) in (2, 2, 1)
// CHECK: %[[ALL:.*]] = tensor.extract_slice %[[PARTS]][%[[I]], %[[J]], 0, %{{.*}}, 0] [1, 1, 3, %{{.*}}, %{{.*}}]
// CHECK: linalg.generic {{.*}}["reduction", "parallel", "parallel"]} ins(%[[ALL]]
// CHECK: tensor.parallel_insert_slice
// CHECK: return %[[DONE]]

// The second one as the last block of the first one's computes it: no other ops, and an attribute.
// LAST: scf.forall {{.*}} in (2, 2, 3)
// LAST: scf.forall {{.*}} in (2, 2, 1)
// LAST: mlirc.last_block = {{[0-9]+}} : i32

func.func @matmul_0(%x: tensor<20x30xf32>, %w: tensor<19x30xf32>) -> tensor<20x19xf32>
    attributes {mlirc.kernel, mlirc.kind = "matmul"} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<20x19xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<20x19xf32>) -> tensor<20x19xf32>
  %r = linalg.generic {
    indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction"]
  } ins(%x, %w : tensor<20x30xf32>, tensor<19x30xf32>) outs(%f : tensor<20x19xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    %s = arith.addf %o, %p : f32
    linalg.yield %s : f32
  } -> tensor<20x19xf32>
  return %r : tensor<20x19xf32>
}
