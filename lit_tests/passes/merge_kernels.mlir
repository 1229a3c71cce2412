// RUN: %mlirc-opt %s --pass mlirc-merge-kernels | %filecheck %s
// RUN: %mlirc-opt %s --pass 'mlirc-merge-kernels{points=0}' | %filecheck %s --check-prefix=ROWS

// A map that makes rows to write joins the write, which takes the map that does not depend on it, too. What reads a
// result of another size stays: its elements would have to wait for all of the others'.
// CHECK-LABEL: func.func @main
// CHECK: %[[B:.*]]:2 = call @bundle_0
// CHECK: call @elementwise_1(%[[B]]#{{[01]}})
// CHECK-NOT: call
// CHECK: return
// CHECK-NOT: @elementwise_0
// CHECK: func.func private @bundle_0
// CHECK-SAME: mlirc.kind = "bundle", mlirc.origin = ["a", "b"]
// CHECK: arith.negf
// CHECK: tm_tensor.scatter
// CHECK: arith.negf
// CHECK: return %{{.*}}, %{{.*}} : tensor<{{.*}}>, tensor<{{.*}}>

// ROWS-LABEL: func.func @main
// ROWS: call @elementwise_0
// ROWS: call @elementwise_1
// ROWS: call @bundle_0
// ROWS: return
func.func @main(%x: tensor<15xf32>, %y: tensor<15xf32>, %i: tensor<5x1xi64>, %p: tensor<9x3xf32>)
    -> (tensor<9x3xf32>, tensor<3xf32>) {
  %0 = call @elementwise_0(%x) : (tensor<15xf32>) -> tensor<15xf32>
  %rows = tensor.expand_shape %0 [[0, 1]] output_shape [5, 3] : tensor<15xf32> into tensor<5x3xf32>
  %1 = call @generic_0(%rows, %i, %p) : (tensor<5x3xf32>, tensor<5x1xi64>, tensor<9x3xf32>) -> tensor<9x3xf32>
  %2 = call @elementwise_0(%y) : (tensor<15xf32>) -> tensor<15xf32>
  %3 = call @elementwise_1(%2) : (tensor<15xf32>) -> tensor<3xf32>
  return %1, %3 : tensor<9x3xf32>, tensor<3xf32>
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
func.func private @elementwise_1(%x: tensor<15xf32>) -> tensor<3xf32>
    attributes {mlirc.kernel, mlirc.kind = "elementwise", mlirc.origin = ["c"]} {
  %e = tensor.empty() : tensor<3xf32>
  %g = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]} outs(%e : tensor<3xf32>) {
  ^bb0(%o: f32):
    %i = linalg.index 0 : index
    %a = tensor.extract %x[%i] : tensor<15xf32>
    linalg.yield %a : f32
  } -> tensor<3xf32>
  return %g : tensor<3xf32>
}
func.func private @generic_0(%rows: tensor<5x3xf32>, %i: tensor<5x1xi64>, %p: tensor<9x3xf32>) -> tensor<9x3xf32>
    attributes {mlirc.kernel, mlirc.kind = "generic", mlirc.origin = ["b"]} {
  %r = tm_tensor.scatter {dimension_map = array<i64: 0>} unique_indices(true)
      ins(%rows, %i : tensor<5x3xf32>, tensor<5x1xi64>) outs(%p : tensor<9x3xf32>) {
  ^bb0(%a: f32, %b: f32):
    tm_tensor.yield %a : f32
  } -> tensor<9x3xf32>
  return %r : tensor<9x3xf32>
}
