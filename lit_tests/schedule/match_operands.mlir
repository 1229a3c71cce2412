// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The slice that a product reads as its second operand, and no other.
// CHECK: tensor.extract_slice %arg0[0, 0] [4, 5] [1, 1] : tensor<8x5xf32>
// CHECK: tensor.extract_slice %arg1[0, 0] [5, 6] [1, 1] {mlirc.swizzle = 0 : i32}

module attributes {transform.with_named_sequence} {
  func.func @product(%a: tensor<8x5xf32>, %b: tensor<5x12xf32>, %c: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %ta = tensor.extract_slice %a[0, 0] [4, 5] [1, 1] : tensor<8x5xf32> to tensor<4x5xf32>
    %tb = tensor.extract_slice %b[0, 0] [5, 6] [1, 1] : tensor<5x12xf32> to tensor<5x6xf32>
    %r = linalg.matmul ins(%ta, %tb : tensor<4x5xf32>, tensor<5x6xf32>) outs(%c : tensor<4x6xf32>) -> tensor<4x6xf32>
    return %r : tensor<4x6xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.generalize"(%func) : (!transform.any_op) -> ()
    %product = "schedule.match_contractions"(%func) : (!transform.any_op) -> !transform.any_op
    %slices = "schedule.match_operands"(%product) {number = 1 : i64} : (!transform.any_op) -> !transform.any_op
    %none = transform.param.constant 0 : i32 -> !transform.any_param
    transform.annotate %slices "mlirc.swizzle" = %none : !transform.any_op, !transform.any_param
    transform.yield
  }
}
