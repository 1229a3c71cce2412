// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Unit dimensions go and contiguous ones merge; the bias keeps the last one apart.

// CHECK-LABEL: func.func @bias
// CHECK: %[[X:.*]] = tensor.collapse_shape %arg0 {{\[\[}}0, 1, 2], [3]] : tensor<2x1x5x7xf32> into tensor<10x7xf32>
// CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "parallel"]} ins(%[[X]], %arg1 : tensor<10x7xf32>, tensor<7xf32>)
// CHECK: tensor.expand_shape {{.*}} output_shape [2, 1, 5, 7]

// The index of a merged dimension would need a division: those stay apart; the unit one's index is 0.

// CHECK-LABEL: func.func @indexed
// CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "parallel"]}
// CHECK: %[[ZERO:.*]] = arith.constant 0 : index
// CHECK: %[[I:.*]] = linalg.index 1
// CHECK: arith.addi %[[ZERO]], %[[I]]

#id = affine_map<(a, b, c, d) -> (a, b, c, d)>
#last = affine_map<(a, b, c, d) -> (d)>
#id3 = affine_map<(a, b, c) -> (a, b, c)>
module attributes {transform.with_named_sequence} {
  func.func @bias(%x: tensor<2x1x5x7xf32>, %b: tensor<7xf32>) -> tensor<2x1x5x7xf32> {
    %e = tensor.empty() : tensor<2x1x5x7xf32>
    %r = linalg.generic {indexing_maps = [#id, #last, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
        ins(%x, %b : tensor<2x1x5x7xf32>, tensor<7xf32>) outs(%e : tensor<2x1x5x7xf32>) {
    ^bb0(%l: f32, %r: f32, %out: f32):
      %0 = arith.addf %l, %r : f32
      linalg.yield %0 : f32
    } -> tensor<2x1x5x7xf32>
    return %r : tensor<2x1x5x7xf32>
  }
  func.func @indexed() -> tensor<1x4x6xindex> {
    %e = tensor.empty() : tensor<1x4x6xindex>
    %r = linalg.generic {indexing_maps = [#id3], iterator_types = ["parallel", "parallel", "parallel"]}
        outs(%e : tensor<1x4x6xindex>) {
    ^bb0(%out: index):
      %i = linalg.index 0 : index
      %j = linalg.index 2 : index
      %0 = arith.addi %i, %j : index
      linalg.yield %0 : index
    } -> tensor<1x4x6xindex>
    return %r : tensor<1x4x6xindex>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.collapse_dims"(%func) : (!transform.any_op) -> ()
    transform.yield
  }
}
