// RUN: %mlirc-opt %s --pass 'mlirc-merge-kernels{points=100}' | %filecheck %s

// What depends on weights and constants alone runs once, at load: it joins what does, too, and nothing else.
// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<15xf32>, %[[W:[^:]*]]: tensor<15xf32> {{{.*}}}, %[[C:[^:]*]]: tensor<15xf32> {{{.*}}}, %[[Y:.*]]: tensor<15xf32>)
// CHECK-DAG: %{{.*}}:2 = call @bundle_{{[01]}}(%[[X]], %[[Y]])
// CHECK-DAG: %{{.*}}:2 = call @bundle_{{[01]}}(%[[W]], %[[C]])
// CHECK-NOT: call
// CHECK: return
func.func @main(%x: tensor<15xf32>, %w: tensor<15xf32> {mlirc.kind = "weight"},
                %c: tensor<15xf32> {mlirc.kind = "constant"}, %y: tensor<15xf32>)
    -> (tensor<15xf32>, tensor<15xf32>, tensor<15xf32>, tensor<15xf32>) {
  %0 = call @elementwise_0(%x) : (tensor<15xf32>) -> tensor<15xf32>
  %1 = call @elementwise_0(%w) : (tensor<15xf32>) -> tensor<15xf32>
  %2 = call @elementwise_0(%c) : (tensor<15xf32>) -> tensor<15xf32>
  %3 = call @elementwise_0(%y) : (tensor<15xf32>) -> tensor<15xf32>
  return %0, %1, %2, %3 : tensor<15xf32>, tensor<15xf32>, tensor<15xf32>, tensor<15xf32>
}
func.func private @elementwise_0(%x: tensor<15xf32>) -> tensor<15xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise", mlirc.origin = ["a"]} {
  %e = tensor.empty() : tensor<15xf32>
  %g = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<15xf32>) outs(%e : tensor<15xf32>) {
  ^bb0(%a: f32, %o: f32):
    %n = arith.negf %a : f32
    linalg.yield %n : f32
  } -> tensor<15xf32>
  return %g : tensor<15xf32>
}
