// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The kernel as it is when its reference is stated stays beside it; what is changed later is not in it.

// CHECK-LABEL: func.func @double
// CHECK-SAME: mlirc.kernel
// CHECK-SAME: mlirc.stated_by = "mine.py:3"
// CHECK-SAME: mlirc.tolerance = 2.000000e-03 : f64
// CHECK: arith.addf {{.*}} {late}
// CHECK: func.func private @double.reference
// CHECK-NOT: mlirc.kernel
// CHECK-SAME: mlirc.reference = "double"
// CHECK-NOT: late
// CHECK: return

module attributes {transform.with_named_sequence} {
  func.func @double(%a: f32) -> f32 attributes {mlirc.kernel} {
    %0 = arith.addf %a, %a : f32
    return %0 : f32
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %function = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.state_reference"(%function) {tolerance = "0.002", by = "mine.py:3"} : (!transform.any_op) -> ()
    %sum = transform.structured.match ops{["arith.addf"]} in %function : (!transform.any_op) -> !transform.any_op
    transform.annotate %sum "late" : !transform.any_op
    transform.yield
  }
}
