// RUN: %mlirc-opt %s --pipeline transform-interpreter | %filecheck %s

// softmax(x) v without attention: the maximum, the sum and the product become one loop with running ones. 70 columns are
// no whole steps of 32: what is behind the end weighs nothing. The maximum starts finite.

// CHECK-LABEL: func.func @weighted
// CHECK: %[[LOW:.*]] = arith.constant -3.40282347E+38 : f32
// CHECK: %[[TOP:.*]] = linalg.fill ins(%[[LOW]]
// CHECK: %[[R:.*]]:3 = scf.for %[[J:.*]] = {{.*}} iter_args(%[[M:.*]] = %[[TOP]], %[[S:.*]] = %{{.*}}, %[[O:.*]] = %{{.*}})
// CHECK: arith.cmpi slt
// CHECK: arith.maximumf
// CHECK: linalg.generic {{.*}} ins(%[[M]], %[[NEW:[0-9]+]] :
// CHECK: arith.subf
// CHECK-NEXT: math.exp
// CHECK: linalg.generic {{.*}} ins(%{{.*}}, %[[NEW]] :
// CHECK: linalg.generic {{.*}} ins(%[[S]],
// CHECK: linalg.generic {{.*}} ins(%[[O]],
// CHECK: scf.yield %[[NEW]],
// CHECK: ins(%[[R]]#2, %[[R]]#1

#ij = affine_map<(d0, d1) -> (d0, d1)>
#i = affine_map<(d0, d1) -> (d0)>
module attributes {transform.with_named_sequence} {
  func.func @weighted(%x: tensor<16x70xf32>, %v: tensor<70x8xf32>) -> tensor<16x8xf32> {
    %low = arith.constant 0xFF800000 : f32
    %zero = arith.constant 0.0 : f32
    %e1 = tensor.empty() : tensor<16xf32>
    %e2 = tensor.empty() : tensor<16x70xf32>
    %e3 = tensor.empty() : tensor<16x8xf32>
    %f1 = linalg.fill ins(%low : f32) outs(%e1 : tensor<16xf32>) -> tensor<16xf32>
    %f2 = linalg.fill ins(%zero : f32) outs(%e1 : tensor<16xf32>) -> tensor<16xf32>
    %f3 = linalg.fill ins(%zero : f32) outs(%e3 : tensor<16x8xf32>) -> tensor<16x8xf32>
    %scaled = linalg.generic {indexing_maps = [#ij, #ij], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<16x70xf32>) outs(%e2 : tensor<16x70xf32>) {
    ^bb0(%a: f32, %o: f32):
      %y = arith.addf %a, %a : f32
      linalg.yield %y : f32
    } -> tensor<16x70xf32>
    %max = linalg.generic {indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]} ins(%scaled : tensor<16x70xf32>) outs(%f1 : tensor<16xf32>) {
    ^bb0(%a: f32, %o: f32):
      %y = arith.maximumf %a, %o : f32
      linalg.yield %y : f32
    } -> tensor<16xf32>
    %p = linalg.generic {indexing_maps = [#ij, #i, #ij], iterator_types = ["parallel", "parallel"]} ins(%scaled, %max : tensor<16x70xf32>, tensor<16xf32>) outs(%e2 : tensor<16x70xf32>) {
    ^bb0(%a: f32, %m: f32, %o: f32):
      %d = arith.subf %a, %m : f32
      %y = math.exp %d : f32
      linalg.yield %y : f32
    } -> tensor<16x70xf32>
    %sum = linalg.generic {indexing_maps = [#ij, #i], iterator_types = ["parallel", "reduction"]} ins(%p : tensor<16x70xf32>) outs(%f2 : tensor<16xf32>) {
    ^bb0(%a: f32, %o: f32):
      %y = arith.addf %o, %a : f32
      linalg.yield %y : f32
    } -> tensor<16xf32>
    %pv = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d2)>, affine_map<(d0, d1, d2) -> (d2, d1)>, affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]} ins(%p, %v : tensor<16x70xf32>, tensor<70x8xf32>) outs(%f3 : tensor<16x8xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %c = arith.mulf %a, %b : f32
      %y = arith.addf %o, %c : f32
      linalg.yield %y : f32
    } -> tensor<16x8xf32>
    %r = linalg.generic {indexing_maps = [#ij, #i, #ij], iterator_types = ["parallel", "parallel"]} ins(%pv, %sum : tensor<16x8xf32>, tensor<16xf32>) outs(%e3 : tensor<16x8xf32>) {
    ^bb0(%a: f32, %t: f32, %o: f32):
      %y = arith.divf %a, %t : f32
      linalg.yield %y : f32
    } -> tensor<16x8xf32>
    return %r : tensor<16x8xf32>
  }
  transform.named_sequence @__transform_main(%module: !transform.any_op {transform.readonly}) {
    %f = transform.structured.match ops{["func.func"]} in %module : (!transform.any_op) -> !transform.any_op
    %products = "schedule.match_contractions"(%f) : (!transform.any_op) -> !transform.any_op
    %loop, %inside = "schedule.online_softmax"(%products) {size = 32 : i64} : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    transform.yield
  }
}
