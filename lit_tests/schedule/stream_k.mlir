// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Three tiles of 3 steps on two blocks: a wave of two tiles is computed whole, and of the third one block 0 has step 0, block
// 1 has steps 1 and 2. In turn 0 a block computes its segment, whose sums go into the workspace, in turn 1 its tile, which goes
// where it went before; what an item does not have is a slice of no rows. The second launch adds the parts of tile 2, in order.

// CHECK-DAG: #[[OWN:.*]] = affine_map<(d0, d1) -> ((d0 - 1) * 2 + d1)>
// CHECK-DAG: #[[COUNT:.*]] = affine_map<(d0) -> ((d0 + 1) * 2 - ((d0 * 3 + 1) * 2 - 1) floordiv 3)>
// CHECK-LABEL: func.func @rows
// CHECK: %[[FIRST:.*]]:2 = scf.forall (%[[I:.*]], %[[B:.*]]) in (2, 2) shared_outs(%[[O:.*]] = %{{.*}}, %[[WS:.*]] = %{{.*}}) -> (tensor<18x5xf32>, tensor<1x2x6x5xf32>) {
// CHECK: %[[LO:.*]] = affine.max
// CHECK: %[[HI:.*]] = affine.min
// CHECK: %[[SOME:.*]] = arith.cmpi slt, %[[LO]], %[[HI]]
// CHECK: %[[T:.*]] = affine.min
// CHECK: %[[P:.*]] = affine.max
// CHECK: %[[WHOLE:.*]] = arith.cmpi sge, %[[I]], %c1
// CHECK: %[[TILE:.*]] = affine.apply #[[OWN]](%[[I]], %[[B]])
// CHECK: arith.select %[[WHOLE]], %[[TILE]],
// CHECK: arith.select %[[WHOLE]], %{{.*}}, %[[LO]]
// CHECK: arith.select %[[WHOLE]], %{{.*}}, %[[HI]]
// CHECK: %[[PART:.*]] = arith.select %[[WHOLE]], %{{.*}}, %[[SOME]] : i1
// CHECK: %[[SUMS:.*]] = scf.for
// CHECK: %[[DONE:.*]] = linalg.generic {{.*}} ins(%[[SUMS]]
// CHECK: %[[ROWS:.*]] = arith.select %[[PART]], %{{.*}}, %{{.*}} : index
// CHECK: %[[A:.*]] = tensor.extract_slice %[[SUMS]][0, 0] [%[[ROWS]], 5]
// CHECK: %[[ALL:.*]] = arith.select %[[WHOLE]], %{{.*}}, %{{.*}} : index
// CHECK: %[[C:.*]] = tensor.extract_slice %[[DONE]][0, 0] [%[[ALL]], 5]
// CHECK-DAG: tensor.parallel_insert_slice %[[A]] into %[[WS]][%[[T]], %[[P]], 0, 0] [1, 1, %[[ROWS]], 5]
// CHECK-DAG: tensor.parallel_insert_slice %[[C]] into %[[O]][%{{.*}}, 0] [%[[ALL]], 5]
// CHECK: %[[SECOND:.*]] = scf.forall (%[[N:.*]], %{{.*}}) in (1, 1) shared_outs(%{{.*}} = %[[FIRST]]#0)
// CHECK: %[[PARTS:.*]] = affine.apply #[[COUNT]](%[[N]])
// CHECK: scf.for %[[Q:.*]] = %{{.*}} to %[[PARTS]] step %{{.*}} iter_args
// CHECK: tensor.extract_slice %[[FIRST]]#1[%[[N]], %[[Q]],
// CHECK: linalg.generic {{.*}}["parallel", "parallel"]}
// CHECK: return %[[SECOND]]

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
#id = affine_map<(m, n) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @rows(%x: tensor<18x10xf32>, %w: tensor<5x10xf32>, %res: tensor<18x5xf32>) -> tensor<18x5xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<18x5xf32>
    %fill = linalg.fill ins(%zero : f32) outs(%e : tensor<18x5xf32>) -> tensor<18x5xf32>
    %c = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<18x10xf32>, tensor<5x10xf32>) outs(%fill : tensor<18x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.mulf %l, %r : f32
      %1 = arith.addf %out, %0 : f32
      linalg.yield %1 : f32
    } -> tensor<18x5xf32>
    %r = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
        ins(%c, %res : tensor<18x5xf32>, tensor<18x5xf32>) outs(%e : tensor<18x5xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.addf %l, %r : f32
      linalg.yield %0 : f32
    } -> tensor<18x5xf32>
    return %r : tensor<18x5xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %root = "schedule.match_root"(%func) : (!transform.any_op) -> !transform.any_op
    %forall = "schedule.tile_to_blocks"(%root) {sizes = array<i64: 6, 0>, keep = array<i64>, order = array<i64>}
        : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_contractions"(%forall) : (!transform.any_op) -> !transform.any_op
    %tiled, %loop = "schedule.tile_reduction"(%found) {size = 4 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %partial, %finish = "schedule.stream_k"(%loop) {blocks = 2 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
