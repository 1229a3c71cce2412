// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// Of each row over its sum one element is read, at an index that data choose: it alone is divided, in the kernel of the
// sums. The cast of a sum of integers is a map, so that a block reduces the row.
// CHECK: %[[FOUND:.*]] = call @reduction_0(
// CHECK: return %[[FOUND]]
// CHECK-LABEL: func.func private @reduction_0
// CHECK-SAME: -> tensor<3xf32>
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "parallel"]} ins(%{{.*}} : tensor<3x40xi32>) outs(%{{.*}} : tensor<3x40xi64>)
// CHECK: arith.extsi
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]} ins(%{{.*}} : tensor<3x40xi64>)
// CHECK: arith.addi
// CHECK: linalg.generic {{.*}} iterator_types = ["parallel"]}
// CHECK: %[[X:.*]] = tensor.extract %{{.*}} : tensor<3x40xi32>
// CHECK: arith.divf
// CHECK: return
#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#one = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<3x40xi32>, %at: tensor<3xi64>) -> tensor<3xf32> {
  %zero = arith.constant 0 : i64
  %es = tensor.empty() : tensor<3xi64>
  %fs = linalg.fill ins(%zero : i64) outs(%es : tensor<3xi64>) -> tensor<3xi64>
  %sum = linalg.generic {indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<3x40xi32>) outs(%fs : tensor<3xi64>) {
  ^bb0(%p: i32, %o: i64):
    %w = arith.extsi %p : i32 to i64
    %s = arith.addi %w, %o : i64
    linalg.yield %s : i64
  } -> tensor<3xi64>
  %e = tensor.empty() : tensor<3x40xf32>
  %n = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %sum : tensor<3x40xi32>, tensor<3xi64>) outs(%e : tensor<3x40xf32>) {
  ^bb0(%p: i32, %q: i64, %o: f32):
    %a = arith.sitofp %p : i32 to f32
    %b = arith.sitofp %q : i64 to f32
    %s = arith.divf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<3x40xf32>
  %ef = tensor.empty() : tensor<3xf32>
  %g = linalg.generic {indexing_maps = [#one, #one], iterator_types = ["parallel"]}
      ins(%at : tensor<3xi64>) outs(%ef : tensor<3xf32>) {
  ^bb0(%k: i64, %o: f32):
    %i = linalg.index 0 : index
    %j = arith.index_cast %k : i64 to index
    %v = tensor.extract %n[%i, %j] : tensor<3x40xf32>
    linalg.yield %v : f32
  } -> tensor<3xf32>
  return %g : tensor<3xf32>
}
