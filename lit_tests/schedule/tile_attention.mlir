// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Causal, grouped heads, bshd layouts: the last rows start first; the keys every row sees take a loop without tests.

// CHECK-DAG: #[[REVERSED:.*]] = affine_map<(d0) -> ((-d0 + 3) * 16)>
// CHECK-DAG: #[[GROUP:.*]] = affine_map<(d0) -> (d0 floordiv 2)>
// CHECK-DAG: #[[END:.*]] = affine_map<(d0) -> (64, d0 + 16)>
// CHECK-DAG: #[[WHOLE:.*]] = affine_map<(d0) -> (64, ((d0 + 1) floordiv 32) * 32)>
// CHECK-LABEL: func.func @attention
// CHECK: scf.forall (%[[B:.*]], %[[H:.*]], %[[Q:.*]]) in (2, 4, 4)
// CHECK: %[[ROW:.*]] = affine.apply #[[REVERSED]](%[[Q]])
// CHECK: %[[KVH:.*]] = affine.apply #[[GROUP]](%[[H]])
// CHECK: tensor.extract_slice %arg0[%[[B]], %[[ROW]], %[[H]], 0] [1, 16, 1, 8] {{.*}} to tensor<16x8xbf16>
// CHECK-DAG: %[[LAST:.*]] = affine.min #[[END]](%[[ROW]])
// CHECK-DAG: %[[MIDDLE:.*]] = affine.min #[[WHOLE]](%[[ROW]])
// CHECK: %[[BULK:.*]]:3 = scf.for %[[J:.*]] = %{{.*}} to %[[MIDDLE]]
// CHECK: tensor.extract_slice %arg1[%[[B]], %[[J]], %[[KVH]], 0] [1, 32, 1, 8]
// CHECK: arith.maximumf
// CHECK: math.exp2
// CHECK: arith.truncf
// CHECK-NOT: linalg.index
// CHECK: scf.for %{{.*}} = %[[MIDDLE]] to %[[LAST]] {{.*}} iter_args(%{{.*}} = %[[BULK]]#0
// CHECK: linalg.index 1
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
    %forall, %loops, %contractions = "schedule.tile_attention"(%op) {block_q = 16 : i64, block_kv = 32 : i64, split = true}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    transform.yield
  }
}
