// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// A tile of chosen matrices is a slice of them, as they lie; the number is read once, in front of the loop, which takes no
// step where it is negative. Outside of a loop every group has a matrix.

// CHECK-LABEL: func.func @loop
// CHECK: %[[NUMBER:.*]] = tensor.extract %arg1[%arg3] : tensor<9xi64>
// CHECK: %[[I:.*]] = arith.index_cast %[[NUMBER]]
// CHECK: %[[LOW:.*]] = arith.maxsi %[[I]], %c0{{.*}} : index
// CHECK: %[[M:.*]] = arith.minsi %[[LOW]], %{{.*}} {mlirc.index_below = 5 : i64} : index
// CHECK: %[[NONE:.*]] = arith.cmpi slt, %[[I]], %c0
// CHECK: %[[END:.*]] = arith.select %[[NONE]], %[[START:.*]], %
// CHECK: scf.for %[[K:.*]] = %[[START]] to %[[END]]
// CHECK: %[[AT:.*]] = affine.apply {{.*}}(%arg4)
// CHECK: tensor.extract_slice %arg2[%[[M]], %[[K]], %[[AT]]] [1, 16, 24] [1, 1, 1] : tensor<5x64x96xf32> to tensor<16x24xf32>
// CHECK-NOT: linalg.generic

// CHECK-LABEL: func.func @row
// CHECK: tensor.extract %arg0[%arg2] : tensor<9xi64>
// CHECK: arith.maxsi {{.*}} {mlirc.index_below = 5 : i64}
// CHECK: %[[M:.*]] = arith.minsi {{.*}} {mlirc.index_below = 5 : i64}
// CHECK: tensor.extract_slice %arg1[%[[M]], %arg3, 0] [1, 1, 96] [1, 1, 1] : tensor<5x64x96xf32> to tensor<1x96xf32>

// Matrices that are rows one below the other.
// CHECK-LABEL: func.func @rows
// CHECK: %[[W:.*]] = tensor.expand_shape %arg1 {{\[\[}}0, 1], [2]] {{.*}} : tensor<320x96xf32> into tensor<5x64x96xf32>
// CHECK: %[[M:.*]] = arith.minsi {{.*}} {mlirc.index_below = 5 : i64}
// CHECK: tensor.extract_slice %[[W]][%[[M]], %arg3, 0] [1, 1, 96] [1, 1, 1] : tensor<5x64x96xf32> to tensor<1x96xf32>

#number = affine_map<(k, n) -> ()>
#id = affine_map<(k, n) -> (k, n)>

module attributes {transform.with_named_sequence} {
  func.func @loop(%x: tensor<16x24xf32>, %table: tensor<9xi64>, %w: tensor<5x64x96xf32>, %g: index, %n0: index) -> tensor<16x24xf32> {
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %c48 = arith.constant 48 : index
    %none = arith.constant 0 : i64
    %zero = arith.constant 0.0 : f32
    %number = tensor.extract_slice %table[%g] [1] [1] : tensor<9xi64> to tensor<i64>
    %r = scf.for %j = %c0 to %c64 step %c16 iter_args(%sum = %x) -> (tensor<16x24xf32>) {
      %e = tensor.empty() : tensor<16x24xf32>
      %tile = linalg.generic {indexing_maps = [#number, #id], iterator_types = ["parallel", "parallel"]}
          ins(%number : tensor<i64>) outs(%e : tensor<16x24xf32>) attrs = {mlirc.gather_matrices} {
      ^bb0(%in: i64, %out: f32):
        %misses = arith.cmpi slt, %in, %none : i64
        %some = arith.maxsi %in, %none : i64
        %m = arith.index_cast %some : i64 to index
        %i = linalg.index 0 : index
        %k = arith.addi %i, %j : index
        %l = linalg.index 1 : index
        %a = arith.addi %l, %n0 : index
        %n = arith.addi %a, %c48 : index
        %v = tensor.extract %w[%m, %k, %n] : tensor<5x64x96xf32>
        %y = arith.select %misses, %zero, %v : f32
        linalg.yield %y : f32
      } -> tensor<16x24xf32>
      %next = linalg.add ins(%sum, %tile : tensor<16x24xf32>, tensor<16x24xf32>) outs(%sum : tensor<16x24xf32>) -> tensor<16x24xf32>
      scf.yield %next : tensor<16x24xf32>
    }
    return %r : tensor<16x24xf32>
  }
  func.func @row(%table: tensor<9xi64>, %w: tensor<5x64x96xf32>, %g: index, %row: index) -> tensor<1x96xf32> {
    %number = tensor.extract_slice %table[%g] [1] [1] : tensor<9xi64> to tensor<i64>
    %e = tensor.empty() : tensor<1x96xf32>
    %tile = linalg.generic {indexing_maps = [#number, #id], iterator_types = ["parallel", "parallel"]}
        ins(%number : tensor<i64>) outs(%e : tensor<1x96xf32>) attrs = {mlirc.gather_matrices} {
    ^bb0(%in: i64, %out: f32):
      %m = arith.index_cast %in : i64 to index
      %i = linalg.index 0 : index
      %k = arith.addi %i, %row : index
      %l = linalg.index 1 : index
      %v = tensor.extract %w[%m, %k, %l] : tensor<5x64x96xf32>
      linalg.yield %v : f32
    } -> tensor<1x96xf32>
    return %tile : tensor<1x96xf32>
  }
  func.func @rows(%table: tensor<9xi64>, %w: tensor<320x96xf32>, %g: index, %row: index) -> tensor<1x96xf32> {
    %number = tensor.extract_slice %table[%g] [1] [1] : tensor<9xi64> to tensor<i64>
    %e = tensor.empty() : tensor<1x96xf32>
    %tile = linalg.generic {indexing_maps = [#number, #id], iterator_types = ["parallel", "parallel"]}
        ins(%number : tensor<i64>) outs(%e : tensor<1x96xf32>) attrs = {mlirc.gather_matrices} {
    ^bb0(%in: i64, %out: f32):
      %m = arith.index_cast %in : i64 to index
      %i = linalg.index 0 : index
      %k = arith.addi %i, %row : index
      %l = linalg.index 1 : index
      %size = arith.constant 64 : index
      %first = arith.muli %m, %size : index
      %at = arith.addi %first, %k : index
      %v = tensor.extract %w[%at, %l] : tensor<320x96xf32>
      linalg.yield %v : f32
    } -> tensor<1x96xf32>
    return %tile : tensor<1x96xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %functions = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %loop = transform.structured.match ops{["scf.for"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.read_matrices"(%loop) : (!transform.any_op) -> ()
    %rest = transform.structured.match ops{["linalg.generic"]} in %module : (!transform.any_op) -> !transform.any_op
    %row = transform.get_parent_op %rest {op_name = "func.func"} : (!transform.any_op) -> !transform.any_op
    "schedule.read_matrices"(%row) : (!transform.any_op) -> ()
    transform.yield
  }
}
