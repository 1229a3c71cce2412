// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Causal: the keys that every row of the block sees take a loop without tests, the others a second one, which ends behind
// the last key that a row sees.

// CHECK-DAG: #[[ROW:.*]] = affine_map<(d0) -> (d0 * 16)>
// CHECK-DAG: #[[GROUP:.*]] = affine_map<(d0) -> (d0 floordiv 2)>
// CHECK-DAG: #[[END:.*]] = affine_map<(d0) -> (64, d0 + 16)>
// CHECK-DAG: #[[WHOLE:.*]] = affine_map<(d0) -> (64, ((d0 + 1) floordiv 32) * 32)>
// CHECK-LABEL: func.func @attention
// CHECK: scf.forall (%[[B:.*]], %[[H:.*]], %[[Q:.*]]) in (2, 4, 4)
// CHECK: %[[R:.*]] = affine.apply #[[ROW]](%[[Q]])
// CHECK: %[[KVH:.*]] = affine.apply #[[GROUP]](%[[H]])
// CHECK: tensor.extract_slice %arg0[%[[B]], %[[R]], %[[H]], 0] [1, 16, 1, 8] {{.*}} to tensor<16x8xbf16>
// CHECK-DAG: %[[LAST:.*]] = affine.min #[[END]](%[[R]])
// CHECK-DAG: %[[MIDDLE:.*]] = affine.min #[[WHOLE]](%[[R]])
// CHECK: %[[BULK:.*]]:3 = scf.for %[[J:.*]] = %{{.*}} to %[[MIDDLE]]
// CHECK: tensor.extract_slice %arg1[%[[B]], %[[J]], %[[KVH]], 0] [1, 32, 1, 8]
// CHECK: arith.maximumf
// CHECK: math.exp2
// CHECK: arith.truncf
// CHECK-NOT: linalg.index
// CHECK: scf.for %{{.*}} = %[[MIDDLE]] to %[[LAST]] {{.*}} iter_args(%{{.*}} = %[[BULK]]#0
// CHECK: linalg.index
// CHECK: arith.cmpi sle
// CHECK: arith.divf
// CHECK: tensor.parallel_insert_slice

module attributes {transform.with_named_sequence} {
  func.func @attention(%q: tensor<2x64x4x8xbf16>, %k: tensor<2x64x2x8xbf16>, %v: tensor<2x64x2x8xbf16>) -> tensor<2x64x4x8xbf16> {
    %o = "mlirc.attention"(%q, %k, %v) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
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
    %loops = "schedule.split_tested_steps"(%loop) : (!transform.any_op) -> !transform.any_op
    %f = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    transform.apply_dce to %f : !transform.any_op
    transform.apply_cse to %f : !transform.any_op
    transform.yield
  }
}
