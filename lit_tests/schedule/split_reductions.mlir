// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

#all = affine_map<(d0) -> (d0)>
#one = affine_map<(d0) -> ()>
#id = affine_map<(r, c) -> (r, c)>
#row = affine_map<(r, c) -> (r)>
#rows = affine_map<(r, c) -> (r, 0)>

// 103 numbers: 12 partial sums of 8 numbers that stand 12 apart; their sum; and the 7 numbers that are left. The position of
// an element is computed from the new loops.
// CHECK: #[[STEP:.*]] = affine_map<(d0, d1) -> (d0 * 12 + d1)>
// CHECK: #[[REST:.*]] = affine_map<(d0) -> (d0 + 96)>

// CHECK-LABEL: func.func @total
// CHECK: %[[NEUTRAL:.*]] = arith.constant -0.000000e+00 : f32
// CHECK: %[[FILL:.*]] = linalg.fill ins(%[[NEUTRAL]] : f32) outs(%{{.*}} : tensor<12xf32>)
// CHECK: %[[PART:.*]] = linalg.generic {indexing_maps = [#[[STEP]], {{.*}}], iterator_types = ["reduction", "parallel"]}
// CHECK-SAME: ins(%arg0, %{{.*}} : tensor<103xf32>, tensor<8xf32>) outs(%[[FILL]]
// CHECK: affine.apply #[[STEP]]
// CHECK: %[[SUM:.*]] = linalg.generic {{.*}} iterator_types = ["reduction"]} ins(%[[PART]] : tensor<12xf32>) outs(%arg1
// CHECK: linalg.generic {indexing_maps = [#[[REST]], {{.*}} ins(%arg0, %{{.*}} : tensor<103xf32>, tensor<7xf32>) outs(%[[SUM]]

// A sum of squares about a mean is read once, not stored; a length that 8 nearly divides leaves nothing over; and where
// the results are many, the partial ones are not split again, however long they are.
// CHECK-LABEL: func.func @about_mean
// CHECK: linalg.generic {{.*}}"reduction", "parallel"]} ins(%arg0, %arg1, %{{.*}} : tensor<3001x104xf32>, tensor<3001xf32>, {{.*}}) outs(%{{.*}} : tensor<3001x13xf32>)
// CHECK: linalg.generic {{.*}}"reduction"]} ins(%{{.*}} : tensor<3001x13xf32>)
// CHECK-NOT: linalg.generic
// CHECK-LABEL: func.func @many_rows
// CHECK: linalg.generic {{.*}} outs(%{{.*}} : tensor<60000x64xf32>)
// CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<60000x64xf32>) outs(%arg1
// CHECK-NOT: linalg.generic

// Short reductions, and those that no single operation makes, stay.
// CHECK-LABEL: func.func @short
// CHECK-COUNT-1: linalg.generic
// CHECK-NOT: linalg.generic
// CHECK-LABEL: func.func @with_scalar
// CHECK: arith.constant 0xFF800000 : f32
// CHECK: linalg.generic {{.*}} ins(%arg0, %arg1, %{{.*}} : tensor<103xf32>, f32, tensor<8xf32>)
// CHECK-LABEL: func.func @two_operations
// CHECK-COUNT-1: linalg.generic
// CHECK-NOT: linalg.generic
module attributes {transform.with_named_sequence} {
  func.func @total(%x: tensor<103xf32>, %init: tensor<f32>) -> tensor<f32> {
    %r = linalg.generic {indexing_maps = [#all, #one], iterator_types = ["reduction"]}
        ins(%x : tensor<103xf32>) outs(%init : tensor<f32>) {
    ^bb0(%in: f32, %out: f32):
      %i = linalg.index 0 : index
      %j = arith.index_cast %i : index to i64
      %f = arith.sitofp %j : i64 to f32
      %m = arith.mulf %in, %f : f32
      %s = arith.addf %m, %out : f32
      linalg.yield %s : f32
    } -> tensor<f32>
    return %r : tensor<f32>
  }

  func.func @about_mean(%x: tensor<3001x104xf32>, %mean: tensor<3001xf32>, %init: tensor<3001xf32>) -> tensor<3001xf32> {
    %e = tensor.empty() : tensor<3001x104xf32>
    %d = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
        ins(%x, %mean : tensor<3001x104xf32>, tensor<3001xf32>) outs(%e : tensor<3001x104xf32>) {
    ^bb0(%in: f32, %m: f32, %out: f32):
      %s = arith.subf %in, %m : f32
      %q = arith.mulf %s, %s : f32
      linalg.yield %q : f32
    } -> tensor<3001x104xf32>
    %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
        ins(%d : tensor<3001x104xf32>) outs(%init : tensor<3001xf32>) {
    ^bb0(%in: f32, %out: f32):
      %s = arith.addf %in, %out : f32
      linalg.yield %s : f32
    } -> tensor<3001xf32>
    return %r : tensor<3001xf32>
  }

  func.func @many_rows(%x: tensor<60000x8192xf32>, %init: tensor<60000xf32>) -> tensor<60000xf32> {
    %r = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
        ins(%x : tensor<60000x8192xf32>) outs(%init : tensor<60000xf32>) {
    ^bb0(%in: f32, %out: f32):
      %s = arith.addf %in, %out : f32
      linalg.yield %s : f32
    } -> tensor<60000xf32>
    return %r : tensor<60000xf32>
  }

  func.func @short(%x: tensor<5x32xf32>, %init: tensor<5x1xf32>) -> tensor<5x1xf32> {
    %r = linalg.generic {indexing_maps = [#id, #rows], iterator_types = ["parallel", "reduction"]}
        ins(%x : tensor<5x32xf32>) outs(%init : tensor<5x1xf32>) {
    ^bb0(%in: f32, %out: f32):
      %s = arith.maximumf %in, %out : f32
      linalg.yield %s : f32
    } -> tensor<5x1xf32>
    return %r : tensor<5x1xf32>
  }

  func.func @with_scalar(%x: tensor<103xf32>, %y: f32, %init: tensor<f32>) -> tensor<f32> {
    %r = linalg.generic {indexing_maps = [#all, #one, #one], iterator_types = ["reduction"]}
        ins(%x, %y : tensor<103xf32>, f32) outs(%init : tensor<f32>) {
    ^bb0(%in: f32, %scalar: f32, %out: f32):
      %m = arith.mulf %in, %scalar : f32
      %s = arith.maximumf %m, %out : f32
      linalg.yield %s : f32
    } -> tensor<f32>
    return %r : tensor<f32>
  }

  func.func @two_operations(%x: tensor<103xf32>, %init: tensor<f32>) -> tensor<f32> {
    %r = linalg.generic {indexing_maps = [#all, #one], iterator_types = ["reduction"]}
        ins(%x : tensor<103xf32>) outs(%init : tensor<f32>) {
    ^bb0(%in: f32, %out: f32):
      %m = arith.mulf %in, %out : f32
      %s = arith.addf %m, %in : f32
      linalg.yield %s : f32
    } -> tensor<f32>
    return %r : tensor<f32>
  }

  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %f = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    "schedule.split_reductions"(%f) {length = 8 : i64} : (!transform.any_op) -> ()
    transform.yield
  }
}
