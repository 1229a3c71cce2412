// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// 100 numbers in 10 chunks of 10 (8 does not divide it, 10 does): each chunk is scanned, then the chunks' totals; what comes
// before a chunk is added to it. The second result is the last element of the first.
// CHECK-LABEL: func.func @total
// CHECK: %[[X:.*]] = tensor.expand_shape %arg0 {{\[}}[0, 1]] output_shape [10, 10]
// CHECK: %[[IN:.*]]:2 = tm_tensor.scan dimension(1) inclusive(true) ins(%[[X]] : tensor<10x10xf32>)
// CHECK: %[[ALL:.*]]:2 = tm_tensor.scan dimension(0) inclusive(true) ins(%[[IN]]#1 : tensor<10xf32>)
// CHECK: %[[KEPT:.*]] = tensor.extract_slice %[[ALL]]#0[0] [9] [1]
// CHECK: %[[NEUTRAL:.*]] = arith.constant -0.000000e+00
// CHECK: %[[BEFORE:.*]] = tensor.insert_slice %[[KEPT]] into %{{.*}}[1] [9] [1]
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} ins(%[[BEFORE]], %[[IN]]#0 : tensor<10xf32>, tensor<10x10xf32>)
// CHECK: %[[R:.*]] = tensor.collapse_shape %[[SUM]]
// CHECK: %[[LAST:.*]] = tensor.extract_slice %[[R]][99] [1] [1]
// CHECK: return %[[R]], %[[LAST]]

// A length without a near divisor is filled up.
// CHECK-LABEL: func.func @prime
// CHECK: tensor.insert_slice %arg0 into %{{.*}}[0, 0] [2, 97] [1, 1] : tensor<2x97xi32> into tensor<2x104xi32>
// CHECK: tm_tensor.scan dimension(2)
// CHECK: tensor.extract_slice %{{.*}}[0, 0] [2, 97] [1, 1] : tensor<2x104xi32> to tensor<2x97xi32>

// Short scans, and running products, stay.
// CHECK-LABEL: func.func @short
// CHECK-COUNT-1: tm_tensor.scan
// CHECK-NOT: tm_tensor.scan
// CHECK-LABEL: func.func @product
// CHECK-COUNT-1: tm_tensor.scan
// CHECK-NOT: tm_tensor.scan
module attributes {transform.with_named_sequence} {
  func.func @total(%x: tensor<100xf32>, %o: tensor<100xf32>, %a: tensor<f32>) -> (tensor<100xf32>, tensor<f32>) {
    %r:2 = tm_tensor.scan dimension(0) inclusive(true) ins(%x : tensor<100xf32>) outs(%o, %a : tensor<100xf32>, tensor<f32>) {
    ^bb0(%p: f32, %q: f32):
      %s = arith.addf %p, %q : f32
      tm_tensor.yield %s : f32
    } -> tensor<100xf32>, tensor<f32>
    return %r#0, %r#1 : tensor<100xf32>, tensor<f32>
  }

  func.func @prime(%x: tensor<2x97xi32>, %o: tensor<2x97xi32>, %a: tensor<2xi32>) -> tensor<2x97xi32> {
    %r:2 = tm_tensor.scan dimension(1) inclusive(true) ins(%x : tensor<2x97xi32>) outs(%o, %a : tensor<2x97xi32>, tensor<2xi32>) {
    ^bb0(%p: i32, %q: i32):
      %s = arith.addi %p, %q : i32
      tm_tensor.yield %s : i32
    } -> tensor<2x97xi32>, tensor<2xi32>
    return %r#0 : tensor<2x97xi32>
  }

  func.func @short(%x: tensor<32xf32>, %o: tensor<32xf32>, %a: tensor<f32>) -> tensor<32xf32> {
    %r:2 = tm_tensor.scan dimension(0) inclusive(true) ins(%x : tensor<32xf32>) outs(%o, %a : tensor<32xf32>, tensor<f32>) {
    ^bb0(%p: f32, %q: f32):
      %s = arith.addf %p, %q : f32
      tm_tensor.yield %s : f32
    } -> tensor<32xf32>, tensor<f32>
    return %r#0 : tensor<32xf32>
  }

  func.func @product(%x: tensor<100xf32>, %o: tensor<100xf32>, %a: tensor<f32>) -> tensor<100xf32> {
    %r:2 = tm_tensor.scan dimension(0) inclusive(true) ins(%x : tensor<100xf32>) outs(%o, %a : tensor<100xf32>, tensor<f32>) {
    ^bb0(%p: f32, %q: f32):
      %s = arith.mulf %p, %q : f32
      tm_tensor.yield %s : f32
    } -> tensor<100xf32>, tensor<f32>
    return %r#0 : tensor<100xf32>
  }

  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %f = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.split_scans"(%f) {length = 8 : i64} : (!transform.any_op) -> ()
    transform.yield
  }
}
