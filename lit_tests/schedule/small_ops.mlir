// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// `generalize` leaves fills, `match_contractions` finds the generic that the matmul became, `require` passes it on, and
// `return_empty` cuts a result without elements off from its computation.

// CHECK-LABEL: func.func @product
// CHECK: linalg.fill
// CHECK: linalg.generic
// CHECK: found.contraction
// CHECK-LABEL: func.func @nothing
// CHECK: %[[NEW:.*]] = tensor.empty() : tensor<0x3xf32>
// CHECK-NEXT: return %[[NEW]]

module attributes {transform.with_named_sequence} {
  func.func @product(%a: tensor<4x5xf32>, %b: tensor<5x6xf32>) -> tensor<4x6xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<4x6xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
    %r = linalg.matmul ins(%a, %b : tensor<4x5xf32>, tensor<5x6xf32>) outs(%f : tensor<4x6xf32>) -> tensor<4x6xf32>
    return %r : tensor<4x6xf32>
  }
  func.func @nothing(%a: tensor<0x3xf32>) -> tensor<0x3xf32> {
    %e = tensor.empty() : tensor<0x3xf32>
    %r = linalg.exp ins(%a : tensor<0x3xf32>) outs(%e : tensor<0x3xf32>) -> tensor<0x3xf32>
    return %r : tensor<0x3xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} attributes {sym_name = "product"} in %module
        : (!transform.any_op) -> !transform.any_op
    "schedule.generalize"(%func) : (!transform.any_op) -> ()
    %found = "schedule.match_contractions"(%func) : (!transform.any_op) -> !transform.any_op
    %same = "schedule.require"(%found) {what = "contraction"} : (!transform.any_op) -> !transform.any_op
    transform.annotate %same "found.contraction" : !transform.any_op
    %empty = transform.structured.match ops{["func.func"]} attributes {sym_name = "nothing"} in %module
        : (!transform.any_op) -> !transform.any_op
    "schedule.return_empty"(%empty) : (!transform.any_op) -> ()
    transform.apply_dce to %empty : !transform.any_op
    transform.yield
  }
}
