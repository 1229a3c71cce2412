// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// Rows of 10 bf16 become rows of 16, with zeros behind them, and k is as long for both operands. Rows of 5 along n lie in
// rows of 8, of which the product sees 5.

// CHECK-LABEL: func.func @product
// CHECK-SAME: (%[[X:.*]]: tensor<6x10xbf16>, %[[W:.*]]: tensor<10x5xbf16>)
// CHECK: %[[ROWS:.*]] = scf.forall {{.*}} in (1, 1) {{.*}} -> (tensor<6x16xbf16>)
// CHECK: linalg.generic {{.*}}mlirc.vector = 2 : i32
// CHECK: %[[INSIDE:.*]] = arith.cmpi slt, %[[AT:.*]], %c10
// CHECK: %[[LAST:.*]] = arith.minsi %[[AT]], %c9
// CHECK: %[[NUMBER:.*]] = tensor.extract %[[X]][%{{.*}}, %[[LAST]]]
// CHECK: arith.select %[[INSIDE]], %[[NUMBER]], %cst
// CHECK: %[[MORE:.*]] = scf.forall {{.*}} in (1, 1) {{.*}} -> (tensor<16x8xbf16>)
// CHECK: %[[SEEN:.*]] = tensor.extract_slice %[[MORE]][0, 0] [16, 5] [1, 1] : tensor<16x8xbf16> to tensor<16x5xbf16>
// CHECK: linalg.generic {{.*}} ins(%[[ROWS]], %[[SEEN]] : tensor<6x16xbf16>, tensor<16x5xbf16>)

#a = affine_map<(m, n, k) -> (m, k)>
#b = affine_map<(m, n, k) -> (k, n)>
#c = affine_map<(m, n, k) -> (m, n)>
module attributes {transform.with_named_sequence} {
  func.func @product(%x: tensor<6x10xbf16>, %w: tensor<10x5xbf16>) -> tensor<6x5xf32> {
    %zero = arith.constant 0.0 : f32
    %e = tensor.empty() : tensor<6x5xf32>
    %fill = linalg.fill ins(%zero : f32) outs(%e : tensor<6x5xf32>) -> tensor<6x5xf32>
    %r = linalg.generic {indexing_maps = [#a, #b, #c], iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%x, %w : tensor<6x10xbf16>, tensor<10x5xbf16>) outs(%fill : tensor<6x5xf32>) {
    ^bb0(%l: bf16, %r: bf16, %out: f32):
      %0 = arith.extf %l : bf16 to f32
      %1 = arith.extf %r : bf16 to f32
      %2 = arith.mulf %0, %1 : f32
      %3 = arith.addf %out, %2 : f32
      linalg.yield %3 : f32
    } -> tensor<6x5xf32>
    return %r : tensor<6x5xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %func = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_contractions"(%func) : (!transform.any_op) -> !transform.any_op
    %copies = "schedule.align_rows"(%found) : (!transform.any_op) -> !transform.any_op
    transform.yield
  }
}
