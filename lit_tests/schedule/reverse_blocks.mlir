// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The innermost loop's blocks are numbered from the last one.

// CHECK: #[[DOWN:.*]] = affine_map<(d0) -> (-d0 + 3)>
// CHECK-LABEL: func.func @twice
// CHECK: scf.forall (%{{.*}}, %[[I:.*]]) in (2, 4)
// CHECK: %[[J:.*]] = affine.apply #[[DOWN]](%[[I]])
// CHECK: affine.apply #{{.*}}(%[[J]])

#ij = affine_map<(d0, d1) -> (d0, d1)>
module attributes {transform.with_named_sequence} {
  func.func @twice(%x: tensor<8x32xf32>) -> tensor<8x32xf32> {
    %e = tensor.empty() : tensor<8x32xf32>
    %r = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<8x32xf32>) outs(%e : tensor<8x32xf32>) {
    ^bb0(%a: f32, %o: f32):
      %y = arith.addf %a, %a : f32
      linalg.yield %y : f32
    } -> tensor<8x32xf32>
    return %r : tensor<8x32xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["linalg.generic"]} in %module : (!transform.any_op) -> !transform.any_op
    %forall = "schedule.tile_to_blocks"(%op) {sizes = array<i64: 4, 8>, keep = array<i64>, order = array<i64>} : (!transform.any_op) -> !transform.any_op
    "schedule.reverse_blocks"(%forall) {loop = -1 : i64} : (!transform.any_op) -> ()
    transform.yield
  }
}
