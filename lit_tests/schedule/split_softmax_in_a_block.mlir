// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The steps are divided among the blocks of a cluster, and those of each among two teams of its warps: what the teams
// have found is combined in their block, what that gives in the cluster, by shares of the tile.

// CHECK-LABEL: func.func @attention
// CHECK: scf.forall {{.*}} in (2, 4, 4)
// CHECK: scf.forall (%[[B:.*]]) in (4)
// CHECK: %[[OF_BLOCK:.*]] = arith.muli %[[B]], %c16
// CHECK: scf.forall (%[[T:.*]]) in (2)
// CHECK: arith.muli %[[T]], %c64
// CHECK: scf.for {{.*}} step %c128
// CHECK: mlirc.teams = 2 : i32
// CHECK: arith.maximumf
// CHECK: math.exp2
// CHECK: scf.forall.in_parallel
// CHECK: scf.forall {{.*}} in (4)
// CHECK: arith.maximumf
// CHECK: math.exp2
// CHECK: arith.divf
// CHECK-NOT: mlirc.teams

module attributes {transform.with_named_sequence} {
  func.func @attention(%q: tensor<2x4x64x8xbf16>, %k: tensor<2x2x256x8xbf16>, %v: tensor<2x2x256x8xbf16>) -> tensor<2x4x64x8xbf16> {
    %o = "mlirc.attention"(%q, %k, %v) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
        layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
        : (tensor<2x4x64x8xbf16>, tensor<2x2x256x8xbf16>, tensor<2x2x256x8xbf16>) -> tensor<2x4x64x8xbf16>
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
    %partial, %finish = "schedule.split_softmax"(%loop) {parts = 4 : i64, through = "cluster", interleave = true}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %teams, %none = "schedule.split_softmax"(%loop) {parts = 2 : i64, through = "block", interleave = true}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
