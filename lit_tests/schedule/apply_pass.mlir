// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// `apply_pass` runs one of our passes, with options, on the module that its handle names.

// CHECK-LABEL: func.func @main
// CHECK: linalg.exp
// CHECK-SAME: mlirc.kernels
module attributes {transform.with_named_sequence} {
  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %e = tensor.empty() : tensor<4xf32>
    %r = linalg.exp ins(%a : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
    return %r : tensor<4xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    "schedule.apply_pass"(%module) {pass_name = "mlirc-group-kernels", options = "maps=true epilogue=false"}
        : (!transform.any_op) -> ()
    transform.yield
  }
}
