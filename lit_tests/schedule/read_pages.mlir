// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Attention over a cache: the queries of the two heads that share a head of keys are the rows of one tile; the length is
// read once, in front of the loop, which ends with it; each step looks up its page and reads a slice of it, as much as is
// there.

// CHECK-DAG: #[[LEFT:.*]] = affine_map<(d0) -> (d0 floordiv 32, 2)>
// CHECK-DAG: #[[WITHIN:.*]] = affine_map<(d0) -> (d0 mod 32)>
// CHECK-DAG: #[[REST:.*]] = affine_map<(d0, d1) -> (d1 - d0, 16)>
// CHECK-LABEL: func.func @attention
// CHECK: tensor.expand_shape %{{.*}} output_shape [2, 2, 6, 8]
// CHECK: scf.forall (%[[B:.*]], %[[H:.*]], %{{.*}}) in (2, 2, 1)
// CHECK: %[[N:.*]] = tensor.extract %arg4[%[[B]]]
// CHECK: arith.index_cast %[[N]]
// CHECK: arith.maxsi {{.*}} {mlirc.index_below = 97 : i64}
// CHECK: %[[LENGTH:.*]] = arith.minsi {{.*}} {mlirc.index_below = 97 : i64}
// CHECK: %[[END:.*]] = arith.minsi %{{.*}}, %{{.*}} : index
// CHECK: scf.for %[[J:.*]] = %{{.*}} to %[[END]] step
// CHECK: %[[SIZE:.*]] = affine.min #[[REST]](%[[J]]
// CHECK: %[[PLACE:.*]] = affine.min #[[LEFT]](%[[J]])
// CHECK: tensor.extract %arg3[%[[B]], %[[PLACE]]]
// CHECK: %[[PAGE:.*]] = arith.minsi {{.*}} {mlirc.index_below = 7 : i64}
// CHECK: %[[AT:.*]] = affine.apply #[[WITHIN]](%[[J]])
// CHECK: tensor.extract_slice %arg1[%[[PAGE]], %[[H]], %[[AT]], 0] [1, 1, %[[SIZE]], 8]
// CHECK: tensor.extract_slice %arg2[%[[PAGE]], %[[AT]], %[[H]], 0] [1, %[[SIZE]], 1, 8]
// CHECK: linalg.index 1
// CHECK: arith.remui
// CHECK-NOT: mlirc.gather_pages
// CHECK: tensor.parallel_insert_slice

module attributes {transform.with_named_sequence} {
  func.func @attention(%q: tensor<2x4x3x8xbf16>, %k: tensor<7x2x32x8xbf16>, %v: tensor<7x32x2x8xbf16>, %t: tensor<2x3xi64>,
                       %n: tensor<2xi64>) -> tensor<2x4x3x8xbf16> {
    %o = "mlirc.cached_attention"(%q, %k, %v, %t, %n) {scale = 0.5 : f64, window = 0 : i64, softcap = 0.0 : f64,
        layouts = ["bhsd", "bhsd", "bshd", "bhsd"]}
        : (tensor<2x4x3x8xbf16>, tensor<7x2x32x8xbf16>, tensor<7x32x2x8xbf16>, tensor<2x3xi64>, tensor<2xi64>)
        -> tensor<2x4x3x8xbf16>
    return %o : tensor<2x4x3x8xbf16>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %op = transform.structured.match ops{["mlirc.cached_attention"]} in %module : (!transform.any_op) -> !transform.any_op
    %result, %products = "schedule.decompose_attention"(%op) {base2 = true, pack = true}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %forall = "schedule.tile_to_blocks"(%result) {sizes = array<i64: 1, 1, 6, 0>, keep = array<i64: 2>,
        order = array<i64>, ones = true} : (!transform.any_op) -> !transform.any_op
    %tiled = "schedule.match_contractions"(%forall) : (!transform.any_op) -> !transform.any_op
    %loop, %inside = "schedule.online_softmax"(%tiled) {size = 16 : i64, ragged = true}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    "schedule.hoist"(%loop) : (!transform.any_op) -> ()
    "schedule.skip_hidden_steps"(%loop) : (!transform.any_op) -> ()
    "schedule.read_pages"(%loop) : (!transform.any_op) -> ()
    %function = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    transform.apply_dce to %function : !transform.any_op
    transform.apply_cse to %function : !transform.any_op
    transform.yield
  }
}
