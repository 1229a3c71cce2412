// RUN: %mlirc-opt %s --pass mlirc-parallel-branches | %filecheck %s

// The plan's builder, which knows where buffers lie, decides which launches wait for which.
// CHECK: func.func private @k(tensor<4xf32>) -> tensor<4xf32>{{$}}
// CHECK: func.func @main({{.*}}) -> tensor<4xf32> attributes {mlirc.branches}
func.func private @k(tensor<4xf32>) -> tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = call @k(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
