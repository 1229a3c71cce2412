// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Both products, and the softmax between them, on whole tensors. Heads of keys are read in groups; the mask and the
// causal limit are in one elementwise op; a scale that only the softmax follows waits for the exponent.

// CHECK-DAG: #[[KEYS:.*]] = affine_map<(d0, d1, d2, d3, d4) -> (d0, d3, d1 floordiv 2, d4)>
// CHECK-DAG: #[[MASK:.*]] = affine_map<(d0, d1, d2, d3) -> (d0, d3)>
// CHECK-LABEL: func.func @attention
// CHECK: linalg.generic {indexing_maps = [#{{.*}}, #[[KEYS]], #{{.*}}], {{.*}} ins(%arg0, %arg1
// CHECK: tensor.collapse_shape %arg3 {{\[\[0, 1, 2\], \[3\]\]}}
// CHECK: linalg.generic {indexing_maps = [#{{.*}}, #[[MASK]], #{{.*}}]
// CHECK-NOT: mulf
// CHECK: arith.select
// CHECK: arith.cmpi sle
// CHECK: arith.select
// CHECK: arith.maximumf
// CHECK: arith.constant 0.721347{{.*}} : f32
// CHECK: math.exp2
// CHECK: arith.addf
// CHECK: arith.truncf
// CHECK: ins(%{{.*}}, %arg2
// CHECK: arith.divf

// With exponentials to the base e the scale is applied to the scores.
// CHECK-LABEL: func.func @plain
// CHECK: arith.mulf %{{.*}}, %{{.*}} : f32
// CHECK: arith.maximumf
// CHECK: %[[D:.*]] = arith.subf
// CHECK-NEXT: math.exp %[[D]]

// A head's sink is part of the sum, behind the loop that there will be: one power for each row, to the same base.
// CHECK-LABEL: func.func @sinks
// CHECK: arith.maximumf
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %{{.*}}, %{{.*}} : tensor<1x4x7x3xf32>, tensor<1x4x7xf32>, tensor<1x4x7xf32>)
// CHECK: tensor.extract %arg3
// CHECK: math.exp2
// CHECK: arith.divf
// CHECK: arith.mulf

module attributes {transform.with_named_sequence} {
  func.func @attention(%q: tensor<2x64x4x8xbf16>, %k: tensor<2x64x2x8xbf16>, %v: tensor<2x64x2x8xbf16>, %mask: tensor<2x1x1x64xi1>) -> tensor<2x64x4x8xbf16> {
    %o = "mlirc.attention"(%q, %k, %v, %mask) {scale = 0.5 : f64, causal = true, window = 0 : i64, softcap = 0.0 : f64,
        layouts = ["bshd", "bshd", "bshd", "bshd"]}
        : (tensor<2x64x4x8xbf16>, tensor<2x64x2x8xbf16>, tensor<2x64x2x8xbf16>, tensor<2x1x1x64xi1>) -> tensor<2x64x4x8xbf16>
    return %o : tensor<2x64x4x8xbf16>
  }
  func.func @plain(%q: tensor<1x1x7x8xf32>, %k: tensor<1x1x5x8xf32>, %v: tensor<1x1x5x3xf32>) -> tensor<1x1x7x3xf32> {
    %o = "mlirc.attention"(%q, %k, %v) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
        layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
        : (tensor<1x1x7x8xf32>, tensor<1x1x5x8xf32>, tensor<1x1x5x3xf32>) -> tensor<1x1x7x3xf32>
    return %o : tensor<1x1x7x3xf32>
  }
  func.func @sinks(%q: tensor<1x4x7x8xbf16>, %k: tensor<1x2x5x8xbf16>, %v: tensor<1x2x5x3xbf16>, %sinks: tensor<4xbf16>) -> tensor<1x4x7x3xbf16> {
    %o = "mlirc.sink_attention"(%q, %k, %v, %sinks) {scale = 0.5 : f64, causal = false, window = 0 : i64, softcap = 0.0 : f64,
        layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]}
        : (tensor<1x4x7x8xbf16>, tensor<1x2x5x8xbf16>, tensor<1x2x5x3xbf16>, tensor<4xbf16>) -> tensor<1x4x7x3xbf16>
    return %o : tensor<1x4x7x3xbf16>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %ops = transform.structured.match ops{["mlirc.attention", "mlirc.sink_attention"]} in %module : (!transform.any_op) -> !transform.any_op
    %first, %second, %third = transform.split_handle %ops : (!transform.any_op) -> (!transform.any_op, !transform.any_op, !transform.any_op)
    %r0, %p0 = "schedule.decompose_attention"(%first) {base2 = true} : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %r1, %p1 = "schedule.decompose_attention"(%second) {base2 = false} : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %r2, %p2 = "schedule.decompose_attention"(%third) {base2 = true} : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
