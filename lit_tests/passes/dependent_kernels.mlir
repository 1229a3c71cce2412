// RUN: %mlirc-opt %s --pass mlirc-dependent-kernels | %filecheck %s

// What a run writes is not given: intermediate results, states; nor what is given in one call and not in another.
// CHECK: func.func private @first({{.*}}) {{.*}}attributes {mlirc.dependent, mlirc.given = array<i64: 0, 1>, mlirc.kernel}
// CHECK: func.func private @second({{.*}}) {{.*}}attributes {mlirc.dependent, mlirc.given = array<i64: 1>, mlirc.kernel}
func.func private @first(tensor<4xf32>, tensor<2x2xf32>, tensor<4xf32>) -> tensor<4xf32> attributes {mlirc.kernel}
func.func private @second(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> attributes {mlirc.kernel}
// CHECK: func.func @main
// CHECK-NOT: mlirc.dependent
func.func @main(%x: tensor<4xf32>, %w: tensor<4xf32> {mlirc.kind = "weight"}, %c: tensor<2x2xf32> {mlirc.kind = "constant"},
                %s: tensor<4xf32> {mlirc.kind = "state"}) -> (tensor<4xf32>, tensor<4xf32> {mlirc.writes = 3 : i64}) {
  %a = call @first(%x, %c, %s) : (tensor<4xf32>, tensor<2x2xf32>, tensor<4xf32>) -> tensor<4xf32>
  %v = tensor.collapse_shape %c [[0, 1]] : tensor<2x2xf32> into tensor<4xf32>
  %b = call @second(%a, %v) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %t = call @second(%w, %w) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %b, %t : tensor<4xf32>, tensor<4xf32>
}
