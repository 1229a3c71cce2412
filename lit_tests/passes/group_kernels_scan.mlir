// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// A selective scan: decays, terms, the recurrence and the sum over its states are one kernel.
// CHECK-LABEL: func.func @main
// CHECK: call @scan_0
// CHECK-NOT: call
// CHECK-LABEL: func.func private @scan_0
// CHECK: %[[A:.*]] = linalg.generic
// CHECK: math.exp
// CHECK: %[[H:.*]]:2 = linalg.generic {{.*}}["reduction", "parallel", "parallel"]{{.*}} ins(%[[A]], %{{.*}}mlirc.scan = "linear"
// CHECK: %[[P:.*]] = linalg.generic {{.*}} ins(%[[H]]#0, %
// CHECK: arith.mulf
// CHECK: linalg.generic {{.*}}["parallel", "parallel", "reduction"]{{.*}} ins(%[[P]] :

#all = affine_map<(t, d, n) -> (t, d, n)>
#step = affine_map<(t, d, n) -> (t, d)>
#state = affine_map<(t, d, n) -> (d, n)>
#input = affine_map<(t, d, n) -> (t, n)>
func.func @main(%dt: tensor<9x6xf32>, %b: tensor<9x4xf32>) -> tensor<9x6xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<9x6x4xf32>
  %h0 = tensor.empty() : tensor<6x4xf32>
  %start = linalg.fill ins(%zero : f32) outs(%h0 : tensor<6x4xf32>) -> tensor<6x4xf32>
  %a = linalg.generic {indexing_maps = [#step, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%dt : tensor<9x6xf32>) outs(%e : tensor<9x6x4xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = math.exp %x : f32
    linalg.yield %y : f32
  } -> tensor<9x6x4xf32>
  %u = linalg.generic {indexing_maps = [#step, #input, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%dt, %b : tensor<9x6xf32>, tensor<9x4xf32>) outs(%e : tensor<9x6x4xf32>) {
  ^bb0(%x: f32, %z: f32, %o: f32):
    %y = arith.mulf %x, %z : f32
    linalg.yield %y : f32
  } -> tensor<9x6x4xf32>
  %h:2 = linalg.generic {indexing_maps = [#all, #all, #all, #state],
      iterator_types = ["reduction", "parallel", "parallel"]} ins(%a, %u : tensor<9x6x4xf32>, tensor<9x6x4xf32>)
      outs(%e, %start : tensor<9x6x4xf32>, tensor<6x4xf32>) attrs = {mlirc.scan = "linear"} {
  ^bb0(%x: f32, %z: f32, %o: f32, %c: f32):
    %p = arith.mulf %x, %c : f32
    %y = arith.addf %p, %z : f32
    linalg.yield %y, %y : f32, f32
  } -> (tensor<9x6x4xf32>, tensor<6x4xf32>)
  %p = linalg.generic {indexing_maps = [#all, #input, #all], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%h#0, %b : tensor<9x6x4xf32>, tensor<9x4xf32>) outs(%e : tensor<9x6x4xf32>) {
  ^bb0(%x: f32, %z: f32, %o: f32):
    %y = arith.mulf %x, %z : f32
    linalg.yield %y : f32
  } -> tensor<9x6x4xf32>
  %r0 = tensor.empty() : tensor<9x6xf32>
  %f = linalg.fill ins(%zero : f32) outs(%r0 : tensor<9x6xf32>) -> tensor<9x6xf32>
  %r = linalg.generic {indexing_maps = [#all, #step], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%p : tensor<9x6x4xf32>) outs(%f : tensor<9x6xf32>) {
  ^bb0(%x: f32, %o: f32):
    %y = arith.addf %x, %o : f32
    linalg.yield %y : f32
  } -> tensor<9x6xf32>
  return %r : tensor<9x6xf32>
}
