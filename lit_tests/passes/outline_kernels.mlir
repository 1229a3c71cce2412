// RUN: %mlirc-opt %s --pass mlirc-group-kernels --pass mlirc-outline-kernels | %filecheck %s

// Two layers call one kernel; reshapes between kernels are views in @main.
// CHECK-LABEL: func.func @main
// CHECK: %[[X:.*]] = tensor.collapse_shape %arg0
// CHECK: %[[A:.*]] = call @elementwise_0(%[[X]], %arg1)
// CHECK: %[[B:.*]] = call @elementwise_0(%[[A]], %arg1)
// CHECK: call @generic_0
// CHECK: call @gather_0
// CHECK-NOT: call
// CHECK: return

// The map over [1, 3, 4] walks [3, 4]; its origins name both layers.
// CHECK-LABEL: func.func private @elementwise_0(%{{.*}}: tensor<3x4xf32>, %{{.*}}: tensor<4xf32>) -> tensor<3x4xf32>
// CHECK-SAME: mlirc.kernel, mlirc.kind = "elementwise", mlirc.origin = ["layer.*"]
// CHECK: iterator_types = ["parallel", "parallel"]
// CHECK: arith.mulf
// CHECK-NEXT: arith.addf

// An op that fits no kernel form is a kernel as it is, with what it needs.
// CHECK-LABEL: func.func private @generic_0
// CHECK-SAME: mlirc.kind = "generic"
// CHECK: linalg.fill
// CHECK: linalg.pooling_nchw_max

// Loaded indices are kept within the table.
// CHECK-LABEL: func.func private @gather_0
// CHECK-SAME: mlirc.kind = "gather"
// CHECK: arith.maxsi
// CHECK: arith.minsi
// CHECK: tensor.extract

#col = affine_map<(d0, d1, d2) -> (d2)>
#row = affine_map<(d0, d1) -> (d0)>
#all = affine_map<(d0, d1) -> (d0, d1)>
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
func.func @main(%x: tensor<1x3x4xf32>, %w: tensor<4xf32>, %table: tensor<9x4xf32>, %i: tensor<2xi64>)
    -> (tensor<1x3x4xf32>, tensor<1x3x4xf32>, tensor<1x1x2x3xf32>, tensor<2x4xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x3x4xf32>
  %0 = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %w : tensor<1x3x4xf32>, tensor<4xf32>) outs(%e : tensor<1x3x4xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %m = arith.mulf %p, %q : f32
    %s = arith.addf %m, %p : f32
    linalg.yield %s : f32
  } -> tensor<1x3x4xf32> loc("layer.0")
  %1 = linalg.generic {indexing_maps = [#id, #col, #id], iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%0, %w : tensor<1x3x4xf32>, tensor<4xf32>) outs(%e : tensor<1x3x4xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %m = arith.mulf %p, %q : f32
    %s = arith.addf %m, %p : f32
    linalg.yield %s : f32
  } -> tensor<1x3x4xf32> loc("layer.1")
  %image = tensor.expand_shape %1 [[0], [1, 2], [3]] output_shape [1, 1, 3, 4] : tensor<1x3x4xf32> into tensor<1x1x3x4xf32>
  %ep = tensor.empty() : tensor<1x1x2x3xf32>
  %window = tensor.empty() : tensor<2x2xf32>
  %f = linalg.fill ins(%zero : f32) outs(%ep : tensor<1x1x2x3xf32>) -> tensor<1x1x2x3xf32>
  %pool = linalg.pooling_nchw_max {strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
      ins(%image, %window : tensor<1x1x3x4xf32>, tensor<2x2xf32>) outs(%f : tensor<1x1x2x3xf32>) -> tensor<1x1x2x3xf32>
  %eg = tensor.empty() : tensor<2x4xf32>
  %g = linalg.generic {indexing_maps = [#row, #all], iterator_types = ["parallel", "parallel"]}
      ins(%i : tensor<2xi64>) outs(%eg : tensor<2x4xf32>) {
  ^bb0(%p: i64, %o: f32):
    %at = arith.index_cast %p : i64 to index
    %c = linalg.index 1 : index
    %v = tensor.extract %table[%at, %c] : tensor<9x4xf32>
    linalg.yield %v : f32
  } -> tensor<2x4xf32>
  return %0, %1, %pool, %g : tensor<1x3x4xf32>, tensor<1x3x4xf32>, tensor<1x1x2x3xf32>, tensor<2x4xf32>
}
