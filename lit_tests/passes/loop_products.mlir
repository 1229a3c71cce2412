// RUN: %mlirc-opt %s --pass mlirc-fuse-recurrences | %filecheck %s

// Of rows that are partly carried the product is a sum: of slices over all steps, in front of the loop, and of the state,
// which is a cell. What only a result is computed of is one product behind it.

// CHECK-LABEL: func.func @main
// CHECK: %[[XS:.*]] = tensor.collapse_shape %arg1
// CHECK: %[[WX:.*]] = tensor.extract_slice %arg2[0, 0] [4, 3]
// CHECK: %[[WT:.*]] = linalg.transpose ins(%[[WX]]
// CHECK: %[[D:.*]] = linalg.matmul ins(%[[XS]], %{{.*}} : tensor<10x3xf32>, tensor<3x4xf32>)
// CHECK: %[[G:.*]] = tensor.expand_shape %[[D]]
// CHECK: %[[WH:.*]] = tensor.extract_slice %arg2[0, 3] [4, 4]
// CHECK: %[[R:.*]]:2 = call @recurrence_0(%arg0, %arg1, %[[G]]
// CHECK: %[[YS:.*]] = tensor.collapse_shape %[[R]]#1
// CHECK: linalg.matmul ins(%[[YS]], %{{.*}} : tensor<10x4xf32>, tensor<4x2xf32>)
// CHECK: func.func private @recurrence_0
// CHECK: scf.for
// CHECK-NOT: tensor.concat
// CHECK: return

func.func @main(%h: tensor<2x4xf32>, %x: tensor<5x2x3xf32>, %w: tensor<4x7xf32>, %v: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<5x2x2xf32>) {
  %r:2 = call @loop_0(%h, %x, %w, %v) : (tensor<2x4xf32>, tensor<5x2x3xf32>, tensor<4x7xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<5x2x2xf32>)
  return %r#0, %r#1 : tensor<2x4xf32>, tensor<5x2x2xf32>
}

func.func private @step_0(%h: tensor<2x4xf32>, %x: tensor<2x3xf32>, %w: tensor<4x7xf32>, %v: tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x2xf32>)
    attributes {mlirc.step} {
  %zero = arith.constant 0.0 : f32
  %c = tensor.concat dim(1) %x, %h : (tensor<2x3xf32>, tensor<2x4xf32>) -> tensor<2x7xf32>
  %we = tensor.empty() : tensor<7x4xf32>
  %wt = linalg.transpose ins(%w : tensor<4x7xf32>) outs(%we : tensor<7x4xf32>) permutation = [1, 0]
  %e = tensor.empty() : tensor<2x4xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x4xf32>) -> tensor<2x4xf32>
  %d = linalg.matmul ins(%c, %wt : tensor<2x7xf32>, tensor<7x4xf32>) outs(%f : tensor<2x4xf32>) -> tensor<2x4xf32>
  %n = linalg.generic {indexing_maps = [affine_map<(b, u) -> (b, u)>, affine_map<(b, u) -> (b, u)>],
      iterator_types = ["parallel", "parallel"]} ins(%d : tensor<2x4xf32>) outs(%e : tensor<2x4xf32>) {
  ^bb0(%a: f32, %o: f32):
    %t = math.tanh %a : f32
    linalg.yield %t : f32
  } -> tensor<2x4xf32>
  %ve = tensor.empty() : tensor<4x2xf32>
  %vt = linalg.transpose ins(%v : tensor<2x4xf32>) outs(%ve : tensor<4x2xf32>) permutation = [1, 0]
  %ye = tensor.empty() : tensor<2x2xf32>
  %yf = linalg.fill ins(%zero : f32) outs(%ye : tensor<2x2xf32>) -> tensor<2x2xf32>
  %y = linalg.matmul ins(%n, %vt : tensor<2x4xf32>, tensor<4x2xf32>) outs(%yf : tensor<2x2xf32>) -> tensor<2x2xf32>
  return %n, %y : tensor<2x4xf32>, tensor<2x2xf32>
}

func.func private @loop_0(%h0: tensor<2x4xf32>, %xs: tensor<5x2x3xf32>, %w: tensor<4x7xf32>, %v: tensor<2x4xf32>)
    -> (tensor<2x4xf32>, tensor<5x2x2xf32>) attributes {mlirc.loop} {
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 5 : index
  %e = tensor.empty() : tensor<5x2x2xf32>
  %r:2 = scf.for %t = %first to %count step %one iter_args(%h = %h0, %y = %e) -> (tensor<2x4xf32>, tensor<5x2x2xf32>) {
    %x = tensor.extract_slice %xs[%t, 0, 0] [1, 2, 3] [1, 1, 1] : tensor<5x2x3xf32> to tensor<2x3xf32>
    %n:2 = func.call @step_0(%h, %x, %w, %v) : (tensor<2x4xf32>, tensor<2x3xf32>, tensor<4x7xf32>, tensor<2x4xf32>) -> (tensor<2x4xf32>, tensor<2x2xf32>)
    %z = tensor.insert_slice %n#1 into %y[%t, 0, 0] [1, 2, 2] [1, 1, 1] : tensor<2x2xf32> into tensor<5x2x2xf32>
    scf.yield %n#0, %z : tensor<2x4xf32>, tensor<5x2x2xf32>
  }
  return %r#0, %r#1 : tensor<2x4xf32>, tensor<5x2x2xf32>
}
