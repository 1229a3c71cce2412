// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// The one row of a product goes with the other unit dimensions: what is left reduces rows of the matrix.

// CHECK-LABEL: func.func @row
// CHECK: %[[X:.*]] = tensor.collapse_shape %arg0 {{\[\[}}0, 1]] : tensor<1x7xf32> into tensor<7xf32>
// CHECK: linalg.generic {{.*}}iterator_types = ["parallel", "reduction"]} ins(%[[X]], %arg1 : tensor<7xf32>, tensor<5x7xf32>)
// CHECK: tensor.expand_shape {{.*}} output_shape [1, 5]

#m_k = affine_map<(m, n, k) -> (m, k)>
#n_k = affine_map<(m, n, k) -> (n, k)>
#m_n = affine_map<(m, n, k) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @row(%x: tensor<1x7xf32>, %w: tensor<5x7xf32>) -> tensor<1x5xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<1x5xf32>
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<1x5xf32>) -> tensor<1x5xf32>
    %r = linalg.generic {indexing_maps = [#m_k, #n_k, #m_n], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<1x7xf32>, tensor<5x7xf32>) outs(%f : tensor<1x5xf32>) {
    ^bb0(%a: f32, %b: f32, %out: f32):
      %0 = arith.mulf %a, %b : f32
      %1 = arith.addf %out, %0 : f32
      linalg.yield %1 : f32
    } -> tensor<1x5xf32>
    return %r : tensor<1x5xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %f = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.collapse_vectors"(%f) : (!transform.any_op) -> ()
    transform.yield
  }
}
