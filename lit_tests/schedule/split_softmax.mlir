// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The steps of an online softmax's loop are divided among three launched parts; the second launch brings their sums to
// the maximum of all, with what the loop itself multiplied its sums by, and adds them.

// CHECK-LABEL: func.func @attention
// CHECK: %[[PARTS:.*]]:3 = scf.forall (%{{.*}}, %{{.*}}, %{{.*}}, %[[P:.*]]) in (2, 4, 4, 3)
// CHECK-SAME: -> (tensor<2x4x4x3x16xf32>, tensor<2x4x4x3x16xf32>, tensor<2x4x4x3x16x8xf32>)
// CHECK: %[[DONE:.*]] = arith.muli %[[P]], %[[STEPS:.*]] : index
// CHECK: arith.divui %[[DONE]]
// CHECK: arith.minsi
// CHECK: scf.for
// CHECK: scf.forall.in_parallel
// CHECK: scf.forall
// CHECK: tensor.extract_slice %[[PARTS]]#0
// CHECK: arith.maximumf
// CHECK: math.exp2
// CHECK: arith.mulf
// CHECK: arith.addf
// CHECK: arith.divf
// CHECK: tensor.parallel_insert_slice

module attributes {transform.with_named_sequence} {
  func.func @attention(%q: tensor<2x4x64x8xbf16>, %k: tensor<2x2x64x8xbf16>, %v: tensor<2x2x64x8xbf16>) -> tensor<2x4x64x8xbf16> {
    %o = "mlirc.attention"(%q, %k, %v) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
        layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
        : (tensor<2x4x64x8xbf16>, tensor<2x2x64x8xbf16>, tensor<2x2x64x8xbf16>) -> tensor<2x4x64x8xbf16>
    return %o : tensor<2x4x64x8xbf16>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["mlirc.attention"]} in %module : (!transform.any_op) -> !transform.any_op
    %result, %products = "schedule.decompose_attention"(%op) {base2 = true}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %forall = "schedule.tile_to_blocks"(%result) {sizes = array<i64: 1, 1, 16, 0>, keep = array<i64: 2>, order = array<i64>}
        : (!transform.any_op) -> !transform.any_op
    %tiled = "schedule.match_contractions"(%forall) : (!transform.any_op) -> !transform.any_op
    %loop, %inside = "schedule.online_softmax"(%tiled) {size = 16 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    "schedule.skip_hidden_steps"(%loop) : (!transform.any_op) -> ()
    %partial, %finish = "schedule.split_softmax"(%loop) {parts = 3 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
