// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// A window: the loop over keys starts at the first step that the block's first row sees, and goes to the end.

// CHECK-DAG: #[[FIRST:.*]] = affine_map<(d0) -> (0, d0 - 19)>
// CHECK-DAG: #[[STEP:.*]] = affine_map<(d0) -> ((d0 floordiv 32) * 32)>
// CHECK-DAG: #[[ROW:.*]] = affine_map<(d0) -> (d0 * 16)>
// CHECK-LABEL: func.func @attention
// CHECK: %[[R:.*]] = affine.apply #[[ROW]]
// CHECK: %[[F:.*]] = affine.max #[[FIRST]](%[[R]])
// CHECK: %[[S:.*]] = affine.apply #[[STEP]](%[[F]])
// CHECK: scf.for %{{.*}} = %[[S]] to %{{.*}} step
// CHECK: arith.cmpi sgt

module attributes {transform.with_named_sequence} {
  func.func @attention(%q: tensor<2x64x4x8xbf16>, %k: tensor<2x64x2x8xbf16>, %v: tensor<2x64x2x8xbf16>) -> tensor<2x64x4x8xbf16> {
    %o = "mlirc.attention"(%q, %k, %v) {scale = 0.5 : f64, causal = false, window = 20 : i64, softcap = 0.0 : f64,
        layouts = ["bshd", "bshd", "bshd", "bshd"]}
        : (tensor<2x64x4x8xbf16>, tensor<2x64x2x8xbf16>, tensor<2x64x2x8xbf16>) -> tensor<2x64x4x8xbf16>
    return %o : tensor<2x64x4x8xbf16>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["mlirc.attention"]} in %module : (!transform.any_op) -> !transform.any_op
    %result, %products = "schedule.decompose_attention"(%op) {base2 = true}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %forall = "schedule.tile_to_blocks"(%result) {sizes = array<i64: 1, 1, 16, 0>, keep = array<i64: 2>, order = array<i64>}
        : (!transform.any_op) -> !transform.any_op
    %tiled = "schedule.match_contractions"(%forall) : (!transform.any_op) -> !transform.any_op
    %loop, %inside = "schedule.online_softmax"(%tiled) {size = 32 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    "schedule.skip_hidden_steps"(%loop) : (!transform.any_op) -> ()
    transform.yield
  }
}
