// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s
// RUN: sed -e 's/ahead = 0 : i64, behind = 1 : i64/ahead = 1 : i64, behind = 1 : i64/' %s | not %mlirc-opt - --pipeline transform-interpreter 2>&1 | %filecheck %s --check-prefix=BOTH
// RUN: sed -e 's/ins(%o, %factor/ins(%o, %before/' %s | not %mlirc-opt - --pipeline transform-interpreter 2>&1 | %filecheck %s --check-prefix=BEFORE

// A product stays a step behind: the maximum that the loop carries runs ahead as a whole, what the product reads is carried,
// with what its sums are scaled by.

// CHECK-LABEL: func.func @weighted
// CHECK: %[[FIRST:.*]]:3 = scf.for {{.*}} = %c0{{.*}} to %c4{{.*}} iter_args({{.*}}, {{.*}}, %[[TOP0:.*]] = %arg2)
// CHECK: arith.maximumf
// CHECK: math.exp2
// CHECK: arith.mulf
// CHECK: %[[MAIN:.*]]:4 = scf.for %[[K:.*]] = %c0{{.*}} to %c8{{.*}} iter_args(%[[TOP:.*]] = %[[FIRST]]#2, %[[SUMS:.*]] = %arg3, %[[FACTOR:.*]] = %[[FIRST]]#0, %[[WEIGHTS:.*]] = %[[FIRST]]#1)
// CHECK: %[[NEXT:.*]] = affine.apply #{{.*}}(%[[K]])
// CHECK: tensor.extract_slice %arg0[0, %[[NEXT]]]
// CHECK: %[[NEWTOP:.*]] = linalg.generic {{.*}} outs(%[[TOP]] :
// CHECK: %[[NEWFACTOR:.*]] = linalg.generic {{.*}} ins(%[[TOP]], %[[NEWTOP]] :
// CHECK: %[[NEWWEIGHTS:.*]] = linalg.generic {{.*}}, %[[NEWTOP]] :
// CHECK: %[[V:.*]] = tensor.extract_slice %arg1[%[[K]], 0]
// CHECK: %[[SCALED:.*]] = linalg.generic {{.*}} ins(%[[SUMS]], %[[FACTOR]] :
// CHECK: %[[NEWSUMS:.*]] = linalg.generic {{.*}} ins(%[[WEIGHTS]], %[[V]] : {{.*}} outs(%[[SCALED]] :
// CHECK: scf.yield %[[NEWTOP]], %[[NEWSUMS]], %[[NEWFACTOR]], %[[NEWWEIGHTS]]
// CHECK: scf.for {{.*}} = %c8{{.*}} to %c12{{.*}} iter_args(%[[LAST:.*]] = %[[MAIN]]#0, %{{.*}} = %[[MAIN]]#1)
// CHECK-NOT: arith.maximumf
// CHECK: linalg.generic {{.*}} ins(%[[MAIN]]#3,
// CHECK: scf.yield %[[LAST]],

// BOTH: rotate takes ahead or behind, not both
// BEFORE: what the loop carries (number 0) is computed ahead of what stays behind

#ik = affine_map<(i, k) -> (i, k)>
#i = affine_map<(i, k) -> (i)>
module attributes {transform.with_named_sequence} {
  func.func @weighted(%x: tensor<4x12xf32>, %v: tensor<12x8xf32>, %low: tensor<4xf32>, %zero: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %c0 = arith.constant 0 : index
    %c4 = arith.constant 4 : index
    %c12 = arith.constant 12 : index
    %e1 = tensor.empty() : tensor<4xf32>
    %e2 = tensor.empty() : tensor<4x4xf32>
    %e3 = tensor.empty() : tensor<4x8xf32>
    %r:2 = scf.for %k = %c0 to %c12 step %c4 iter_args(%before = %low, %o = %zero) -> (tensor<4xf32>, tensor<4x8xf32>) {
      %s = tensor.extract_slice %x[0, %k] [4, 4] [1, 1] : tensor<4x12xf32> to tensor<4x4xf32>
      %vs = tensor.extract_slice %v[%k, 0] [4, 8] [1, 1] : tensor<12x8xf32> to tensor<4x8xf32>
      %new = linalg.generic {indexing_maps = [#ik, #i], iterator_types = ["parallel", "reduction"]}
          ins(%s : tensor<4x4xf32>) outs(%before : tensor<4xf32>) {
      ^bb0(%a: f32, %m: f32):
        %y = arith.maximumf %a, %m : f32
        linalg.yield %y : f32
      } -> tensor<4xf32>
      %factor = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
          iterator_types = ["parallel"]} ins(%before, %new : tensor<4xf32>, tensor<4xf32>) outs(%e1 : tensor<4xf32>) {
      ^bb0(%a: f32, %b: f32, %m: f32):
        %d = arith.subf %a, %b : f32
        %y = math.exp2 %d : f32
        linalg.yield %y : f32
      } -> tensor<4xf32>
      %p = linalg.generic {indexing_maps = [#ik, #i, #ik], iterator_types = ["parallel", "parallel"]}
          ins(%s, %new : tensor<4x4xf32>, tensor<4xf32>) outs(%e2 : tensor<4x4xf32>) {
      ^bb0(%a: f32, %b: f32, %m: f32):
        %y = arith.mulf %a, %b : f32
        linalg.yield %y : f32
      } -> tensor<4x4xf32>
      %scaled = linalg.generic {indexing_maps = [#ik, #i, #ik], iterator_types = ["parallel", "parallel"]}
          ins(%o, %factor : tensor<4x8xf32>, tensor<4xf32>) outs(%e3 : tensor<4x8xf32>) {
      ^bb0(%a: f32, %b: f32, %m: f32):
        %y = arith.mulf %a, %b : f32
        linalg.yield %y : f32
      } -> tensor<4x8xf32>
      %sums = linalg.generic {indexing_maps = [affine_map<(i, j, k) -> (i, k)>, affine_map<(i, j, k) -> (k, j)>,
          affine_map<(i, j, k) -> (i, j)>], iterator_types = ["parallel", "parallel", "reduction"]}
          ins(%p, %vs : tensor<4x4xf32>, tensor<4x8xf32>) outs(%scaled : tensor<4x8xf32>) {
      ^bb0(%a: f32, %b: f32, %out: f32):
        %y = arith.mulf %a, %b : f32
        %z = arith.addf %out, %y : f32
        linalg.yield %z : f32
      } -> tensor<4x8xf32>
      scf.yield %new, %sums : tensor<4xf32>, tensor<4x8xf32>
    }
    return %r#1 : tensor<4x8xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %loop = transform.structured.match ops{["scf.for"]} in %module : (!transform.any_op) -> !transform.any_op
    %found = "schedule.match_contractions"(%module) : (!transform.any_op) -> !transform.any_op
    %loops, %moved = "schedule.rotate"(%loop, %found) {ahead = 0 : i64, behind = 1 : i64}
        : (!transform.any_op, !transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
