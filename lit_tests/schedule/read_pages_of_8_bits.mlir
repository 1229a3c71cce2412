// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// A cache of 8-bit floats: a step reads slices of the pools as they are, and widens them in front of its products.

// CHECK-LABEL: func.func @attention
// CHECK: scf.for
// CHECK: %[[KEYS:.*]] = tensor.extract_slice %arg1{{.*}} tensor<7x2x32x8xf8E4M3FN> to tensor<?x8xf8E4M3FN>
// CHECK: linalg.generic {{.*}} ins(%[[KEYS]] : tensor<?x8xf8E4M3FN>) outs(%{{.*}} : tensor<?x8xbf16>)
// CHECK: arith.extf %{{.*}} : f8E4M3FN to bf16
// CHECK: %[[VALUES:.*]] = tensor.extract_slice %arg2{{.*}} tensor<7x32x2x8xf8E4M3FN> to tensor<?x8xf8E4M3FN>
// CHECK: linalg.generic {{.*}} ins(%[[VALUES]] : tensor<?x8xf8E4M3FN>) outs(%{{.*}} : tensor<?x8xbf16>)
// CHECK: arith.extf %{{.*}} : f8E4M3FN to bf16
// CHECK-NOT: mlirc.gather_pages
// CHECK: tensor.parallel_insert_slice

module attributes {transform.with_named_sequence} {
  func.func @attention(%q: tensor<2x4x3x8xbf16>, %k: tensor<7x2x32x8xf8E4M3FN>, %v: tensor<7x32x2x8xf8E4M3FN>, %t: tensor<2x3xi64>,
                       %n: tensor<2xi64>) -> tensor<2x4x3x8xbf16> {
    %o = "mlirc.cached_attention"(%q, %k, %v, %t, %n) {scale = 0.5 : f64, window = 0 : i64, softcap = 0.0 : f64,
        layouts = ["bhsd", "bhsd", "bshd", "bhsd"]}
        : (tensor<2x4x3x8xbf16>, tensor<7x2x32x8xf8E4M3FN>, tensor<7x32x2x8xf8E4M3FN>, tensor<2x3xi64>, tensor<2xi64>)
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
