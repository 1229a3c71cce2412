// RUN: %mlirc-opt %s --script graph | %filecheck %s

// The rows of the generator's state are free views, so that draws that differ in their offset are one kernel.
// CHECK-LABEL: func.func @main
// CHECK-SAME: mlirc.draws = array<i64: 0, 4, 8>
// CHECK: %[[SEED:.*]] = tensor.extract_slice %{{.*}}[0] [1] [1]
// CHECK: %[[FIRST:.*]] = tensor.extract_slice %{{.*}}[2] [1] [1]
// CHECK: %[[SECOND:.*]] = tensor.extract_slice %{{.*}}[4] [1] [1]
// CHECK: call @elementwise_0(%{{.*}}, %[[SEED]], %[[FIRST]])
// CHECK: call @elementwise_0(%{{.*}}, %[[SEED]], %[[SECOND]])
// CHECK-NOT: @elementwise_1

#map = affine_map<(d0) -> ()>
#id = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<5xf32> {mlirc.name = "x", mlirc.kind = "input"},
    %state: tensor<3x2xi64> {mlirc.draws = array<i64: 0, 4, 8>, mlirc.kind = "random", mlirc.name = "mlirc.random"})
    -> (tensor<5xf32>, tensor<5xf32>) {
  %flat = tensor.collapse_shape %state [[0, 1]] : tensor<3x2xi64> into tensor<6xi64>
  %s0 = tensor.extract_slice %flat[0] [1] [1] : tensor<6xi64> to tensor<1xi64>
  %s1 = tensor.extract_slice %flat[2] [1] [1] : tensor<6xi64> to tensor<1xi64>
  %s2 = tensor.extract_slice %flat[4] [1] [1] : tensor<6xi64> to tensor<1xi64>
  %seed = tensor.collapse_shape %s0 [] : tensor<1xi64> into tensor<i64>
  %first = tensor.collapse_shape %s1 [] : tensor<1xi64> into tensor<i64>
  %second = tensor.collapse_shape %s2 [] : tensor<1xi64> into tensor<i64>
  %e = tensor.empty() : tensor<5xf32>
  %a = linalg.generic {indexing_maps = [#id, #map, #map, #id], iterator_types = ["parallel"]}
      ins(%x, %seed, %first : tensor<5xf32>, tensor<i64>, tensor<i64>) outs(%e : tensor<5xf32>) {
  ^bb0(%p: f32, %q: i64, %r: i64, %o: f32):
    %w = arith.xori %q, %r : i64
    %f = arith.sitofp %w : i64 to f32
    %s = arith.addf %p, %f : f32
    linalg.yield %s : f32
  } -> tensor<5xf32>
  %b = linalg.generic {indexing_maps = [#id, #map, #map, #id], iterator_types = ["parallel"]}
      ins(%x, %seed, %second : tensor<5xf32>, tensor<i64>, tensor<i64>) outs(%e : tensor<5xf32>) {
  ^bb0(%p: f32, %q: i64, %r: i64, %o: f32):
    %w = arith.xori %q, %r : i64
    %f = arith.sitofp %w : i64 to f32
    %s = arith.addf %p, %f : f32
    linalg.yield %s : f32
  } -> tensor<5xf32>
  return %a, %b : tensor<5xf32>, tensor<5xf32>
}
