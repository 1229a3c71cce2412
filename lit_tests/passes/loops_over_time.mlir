// RUN: %mlirc-opt %s --script 'graph:recurrences=false' | %filecheck %s

// A loop is called by @main and calls its step; ops before, in and behind it become kernels, equal ones once.
// CHECK-LABEL: func.func @main
// CHECK: %[[START:.*]] = call @elementwise_1()
// CHECK: call @elementwise_0
// CHECK: %[[X:.*]] = tensor.expand_shape
// CHECK: %[[R:.*]]:2 = call @loop_0(%[[START]], %[[X]], %arg1)
// CHECK: tensor.collapse_shape %[[R]]#1
// CHECK: call @elementwise_2
// CHECK: return %[[R]]#0

// CHECK-LABEL: func.func private @loop_0
// CHECK-SAME: attributes {mlirc.loop}
// CHECK: scf.for
// CHECK: tensor.extract_slice
// CHECK: call @step_0
// CHECK: tensor.insert_slice

// CHECK-LABEL: func.func private @step_0
// CHECK-SAME: attributes {mlirc.step}
// CHECK: %[[NEW:.*]] = call @matmul_0
// CHECK-NEXT: return %[[NEW]], %[[NEW]]

// CHECK: func.func private @elementwise_0(
// CHECK: math.tanh
// CHECK: func.func private @elementwise_1() -> tensor<2x3xf32>
// CHECK: func.func private @elementwise_2(
// CHECK: math.exp
// CHECK: func.func private @matmul_0(
// CHECK: arith.mulf
// CHECK: arith.addf

#id3 = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%xs: tensor<4x2x3xf32>, %w: tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<4x2x3xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x3xf32>
  %h = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
  %all = tensor.empty() : tensor<4x2x3xf32>
  %x = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%xs : tensor<4x2x3xf32>) outs(%all : tensor<4x2x3xf32>) {
    ^bb0(%a: f32, %o: f32):
      %t = math.tanh %a : f32
      linalg.yield %t : f32
  } -> tensor<4x2x3xf32>
  %r:2 = call @loop_0(%h, %x, %w) : (tensor<2x3xf32>, tensor<4x2x3xf32>, tensor<3x3xf32>)
    -> (tensor<2x3xf32>, tensor<4x2x3xf32>)
  %y = linalg.generic {indexing_maps = [#id3, #id3], iterator_types = ["parallel", "parallel", "parallel"]}
    ins(%r#1 : tensor<4x2x3xf32>) outs(%all : tensor<4x2x3xf32>) {
    ^bb0(%a: f32, %o: f32):
      %t = math.exp %a : f32
      linalg.yield %t : f32
  } -> tensor<4x2x3xf32>
  return %r#0, %y : tensor<2x3xf32>, tensor<4x2x3xf32>
}

func.func private @loop_0(%h: tensor<2x3xf32>, %xs: tensor<4x2x3xf32>, %w: tensor<3x3xf32>)
    -> (tensor<2x3xf32>, tensor<4x2x3xf32>) attributes {mlirc.loop} {
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 4 : index
  %ys = tensor.empty() : tensor<4x2x3xf32>
  %r:2 = scf.for %t = %first to %count step %one iter_args(%c = %h, %y = %ys) -> (tensor<2x3xf32>, tensor<4x2x3xf32>) {
    %x = tensor.extract_slice %xs[%t, 0, 0] [1, 2, 3] [1, 1, 1] : tensor<4x2x3xf32> to tensor<2x3xf32>
    %n:2 = func.call @step_0(%c, %x, %w) : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<3x3xf32>)
      -> (tensor<2x3xf32>, tensor<2x3xf32>)
    %z = tensor.insert_slice %n#1 into %y[%t, 0, 0] [1, 2, 3] [1, 1, 1] : tensor<2x3xf32> into tensor<4x2x3xf32>
    scf.yield %n#0, %z : tensor<2x3xf32>, tensor<4x2x3xf32>
  }
  return %r#0, %r#1 : tensor<2x3xf32>, tensor<4x2x3xf32>
}

func.func private @step_0(%h: tensor<2x3xf32>, %x: tensor<2x3xf32>, %w: tensor<3x3xf32>)
    -> (tensor<2x3xf32>, tensor<2x3xf32>) attributes {mlirc.step} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
  %p = linalg.matmul ins(%h, %w : tensor<2x3xf32>, tensor<3x3xf32>) outs(%f : tensor<2x3xf32>) -> tensor<2x3xf32>
  %s = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
    ins(%p, %x : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %t = arith.addf %a, %b : f32
      linalg.yield %t : f32
  } -> tensor<2x3xf32>
  return %s, %s : tensor<2x3xf32>, tensor<2x3xf32>
}
