// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The second of two matches, and no other.
// CHECK: arith.addf %arg0, %arg1 : f32
// CHECK: arith.addf %arg1, %{{.*}} {chosen} : f32

module attributes {transform.with_named_sequence} {
  func.func @sums(%a: f32, %b: f32) -> f32 {
    %0 = arith.addf %a, %b : f32
    %1 = arith.addf %b, %0 : f32
    return %1 : f32
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %sums = transform.structured.match ops{["arith.addf"]} in %module : (!transform.any_op) -> !transform.any_op
    %second = "schedule.pick"(%sums) {number = 1 : i64} : (!transform.any_op) -> !transform.any_op
    transform.annotate %second "chosen" : !transform.any_op
    transform.yield
  }
}
