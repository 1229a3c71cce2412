// RUN: %mlirc-opt %s --pass mlirc-fuse-recurrences | %filecheck %s
// RUN: %mlirc-opt %S/inputs/recurrence_pair.mlir --pass mlirc-fuse-recurrences | %filecheck %s --check-prefix=PAIR

// A loop whose step multiplies what it carries with a matrix, and computes each unit of the rest alone, is one kernel: the
// step is computed in it. A map that reads the product and the slice of this step, from the last to the first.

// CHECK-LABEL: func.func @main
// CHECK: call @recurrence_0(%arg0, %arg1, %arg2)
// CHECK-NOT: call @recurrence_0
// CHECK: call @loop_1
// CHECK-NOT: func.func private @step_0
// CHECK: func.func private @step_1
// CHECK: func.func private @recurrence_0
// CHECK-SAME: attributes {mlirc.kernel, mlirc.kind = "recurrence", mlirc.origin = []}
// CHECK: scf.for %[[T:.*]] = %{{.*}} iter_args(%[[H:.*]] = %arg0, %[[Y:.*]] = %{{.*}})
// CHECK: %[[I:.*]] = arith.subi %{{.*}}, %[[T]]
// CHECK: %[[X:.*]] = tensor.extract_slice %arg1[%[[I]], 0, 0] [1, 2, 3]
// CHECK: %[[D:.*]] = linalg.generic
// CHECK-SAME: ins(%[[H]], %arg2
// CHECK: %[[N:.*]] = linalg.generic
// CHECK-SAME: ins(%[[X]], %[[D]]
// CHECK: math.tanh
// CHECK: %[[Z:.*]] = tensor.insert_slice %[[N]] into %[[Y]][%[[I]], 0, 0]
// CHECK: scf.yield %[[N]], %[[Z]]

// Two calls that do not depend on each other are one, of a kernel that has both loops.
// PAIR-LABEL: func.func @main
// PAIR: %[[R:.*]]:4 = call @recurrence_[[N:.*]](%arg0, %arg1, %arg2, %arg0, %arg1, %arg3)
// PAIR: call @recurrence_0(%[[R]]#0, %[[R]]#1, %arg2)
// PAIR: func.func private @recurrence_[[N]]
// PAIR: scf.for
// PAIR: scf.for
// PAIR: return

// A matrix that the GPU's registers do not hold: a loop of launches.
// CHECK: func.func private @loop_1
// CHECK-SAME: mlirc.loop

#id = affine_map<(b, u) -> (b, u)>
func.func @main(%h: tensor<2x3xf32>, %x: tensor<5x2x3xf32>, %w: tensor<3x3xf32>,
                %g: tensor<2x4096xf32>, %v: tensor<4096x4096xf32>) -> (tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<2x4096xf32>) {
  %r:2 = call @loop_0(%h, %x, %w) : (tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<5x2x3xf32>)
  %s = call @loop_1(%g, %v) : (tensor<2x4096xf32>, tensor<4096x4096xf32>) -> tensor<2x4096xf32>
  return %r#0, %r#1, %s : tensor<2x3xf32>, tensor<5x2x3xf32>, tensor<2x4096xf32>
}

func.func private @step_0(%h: tensor<2x3xf32>, %x: tensor<2x3xf32>, %w: tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    attributes {mlirc.step} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x3xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x3xf32>) -> tensor<2x3xf32>
  %d = linalg.matmul ins(%h, %w : tensor<2x3xf32>, tensor<3x3xf32>) outs(%f : tensor<2x3xf32>) -> tensor<2x3xf32>
  %n = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x, %d : tensor<2x3xf32>, tensor<2x3xf32>) outs(%e : tensor<2x3xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.addf %a, %b : f32
    %t = math.tanh %s : f32
    linalg.yield %t : f32
  } -> tensor<2x3xf32>
  return %n, %n : tensor<2x3xf32>, tensor<2x3xf32>
}

func.func private @step_1(%h: tensor<2x4096xf32>, %w: tensor<4096x4096xf32>) -> tensor<2x4096xf32> attributes {mlirc.step} {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x4096xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<2x4096xf32>) -> tensor<2x4096xf32>
  %d = linalg.matmul ins(%h, %w : tensor<2x4096xf32>, tensor<4096x4096xf32>) outs(%f : tensor<2x4096xf32>) -> tensor<2x4096xf32>
  return %d : tensor<2x4096xf32>
}

func.func private @loop_0(%h0: tensor<2x3xf32>, %xs: tensor<5x2x3xf32>, %w: tensor<3x3xf32>)
    -> (tensor<2x3xf32>, tensor<5x2x3xf32>) attributes {mlirc.loop} {
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 5 : index
  %last = arith.constant 4 : index
  %e = tensor.empty() : tensor<5x2x3xf32>
  %r:2 = scf.for %t = %first to %count step %one iter_args(%h = %h0, %y = %e) -> (tensor<2x3xf32>, tensor<5x2x3xf32>) {
    %i = arith.subi %last, %t : index
    %x = tensor.extract_slice %xs[%i, 0, 0] [1, 2, 3] [1, 1, 1] : tensor<5x2x3xf32> to tensor<2x3xf32>
    %n:2 = func.call @step_0(%h, %x, %w) : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<3x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    %z = tensor.insert_slice %n#1 into %y[%i, 0, 0] [1, 2, 3] [1, 1, 1] : tensor<2x3xf32> into tensor<5x2x3xf32>
    scf.yield %n#0, %z : tensor<2x3xf32>, tensor<5x2x3xf32>
  }
  return %r#0, %r#1 : tensor<2x3xf32>, tensor<5x2x3xf32>
}

func.func private @loop_1(%h0: tensor<2x4096xf32>, %w: tensor<4096x4096xf32>) -> tensor<2x4096xf32> attributes {mlirc.loop} {
  %first = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = arith.constant 7 : index
  %r = scf.for %t = %first to %count step %one iter_args(%h = %h0) -> (tensor<2x4096xf32>) {
    %n = func.call @step_1(%h, %w) : (tensor<2x4096xf32>, tensor<4096x4096xf32>) -> tensor<2x4096xf32>
    scf.yield %n : tensor<2x4096xf32>
  }
  return %r : tensor<2x4096xf32>
}
