// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// C^T = B^T A^T: the weights' rows are the first dimension of the sums, in the loop, too; what follows the product reads
// them transposed. The factors stay what they are multiplied as.

// CHECK-DAG: #[[B:.*]] = affine_map<(d0, d1, d2) -> (d1, d2)>
// CHECK-DAG: #[[A:.*]] = affine_map<(d0, d1, d2) -> (d0, d2)>
// CHECK-DAG: #[[C:.*]] = affine_map<(d0, d1, d2) -> (d1, d0)>
// CHECK-DAG: #[[T:.*]] = affine_map<(d0, d1) -> (d1, d0)>
// CHECK-LABEL: func.func @product
// CHECK: linalg.fill {{.*}} -> tensor<5x6xf32>
// CHECK: %[[SUMS:.*]] = scf.for {{.*}} -> (tensor<5x6xf32>)
// CHECK: linalg.generic {indexing_maps = [#[[B]], #[[A]], #[[C]]]
// CHECK-SAME: ins(%{{.*}}, %{{.*}} : tensor<5x4xf32>, tensor<6x4xbf16>)
// CHECK: ^bb0(%[[W:.*]]: f32, %[[X:.*]]: bf16, %[[OUT:.*]]: f32):
// CHECK: %[[WIDE:.*]] = arith.extf %[[X]] : bf16 to f32
// CHECK: arith.mulf %[[WIDE]], %[[W]]
// CHECK: %[[BACK:.*]] = linalg.generic {indexing_maps = [#[[T]], {{.*}} ins(%[[SUMS]] : tensor<5x6xf32>) outs(%{{.*}} : tensor<6x5xf32>)
// CHECK: return %[[BACK]]

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (n, k)>
#c = affine_map<(m, n, k) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @product(%x: tensor<6x12xbf16>, %w: tensor<5x12xf32>) -> tensor<6x5xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<6x5xf32>
    %fill = linalg.fill ins(%zero : f32) outs(%e : tensor<6x5xf32>) -> tensor<6x5xf32>
    %r = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<6x12xbf16>, tensor<5x12xf32>) outs(%fill : tensor<6x5xf32>) {
    ^bb0(%l: bf16, %r: f32, %out: f32):
      %0 = arith.extf %l : bf16 to f32
      %1 = arith.mulf %0, %r : f32
      %2 = arith.addf %out, %1 : f32
      linalg.yield %2 : f32
    } -> tensor<6x5xf32>
    return %r : tensor<6x5xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_contractions"(%func) : (!transform.any_op) -> !transform.any_op
    %swapped = "schedule.swap_operands"(%found) : (!transform.any_op) -> !transform.any_op
    %tiled, %loop = "schedule.tile_reduction"(%swapped) {size = 4 : i64}
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
