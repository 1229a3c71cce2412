// RUN: %mlirc-opt %s --pass mlirc-convolutions | %filecheck %s

// What widens 8-bit floats in front of a convolution is left out, and zeros around them are the windows': the contraction
// widens what it reads.

#id = affine_map<(n, c, h, w) -> (n, c, h, w)>

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%[[X:.*]]: tensor<2x16x5x7xf8E4M3FN>, %[[W:.*]]: tensor<6x16x3x3xf8E5M2>)
// CHECK-NOT: arith.extf
// CHECK: %[[IMAGE:.*]] = linalg.transpose ins(%[[X]]
// CHECK: %[[ROWS:.*]] = linalg.transpose ins(%[[W]]
// CHECK: linalg.generic {{.*}} : tensor<70x144xf8E4M3FN>) attrs = {mlirc.gather_windows
// CHECK: tensor.extract %[[IMAGE]]
// CHECK: %[[FLAT:.*]] = tensor.collapse_shape %[[ROWS]]
// CHECK: linalg.generic {{.*}}"reduction"]} ins(%{{.*}}, %[[FLAT]] : tensor<70x144xf8E4M3FN>, tensor<6x144xf8E5M2>)
// CHECK: arith.extf {{.*}} : f8E4M3FN to f32
// CHECK: arith.extf {{.*}} : f8E5M2 to f32
func.func @main(%x: tensor<2x16x5x7xf8E4M3FN>, %w: tensor<6x16x3x3xf8E5M2>) -> tensor<2x6x5x7xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<2x16x5x7xf32>
  %wide = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%x : tensor<2x16x5x7xf8E4M3FN>) outs(%e : tensor<2x16x5x7xf32>) {
  ^bb0(%in: f8E4M3FN, %out: f32):
    %t = arith.extf %in : f8E4M3FN to f32
    linalg.yield %t : f32
  } -> tensor<2x16x5x7xf32>
  %padded = tensor.pad %wide low[0, 0, 1, 1] high[0, 0, 1, 1] {
  ^bb0(%a: index, %b: index, %c: index, %d: index):
    tensor.yield %zero : f32
  } : tensor<2x16x5x7xf32> to tensor<2x16x7x9xf32>
  %f = tensor.empty() : tensor<6x16x3x3xf32>
  %taps = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel", "parallel", "parallel"]}
      ins(%w : tensor<6x16x3x3xf8E5M2>) outs(%f : tensor<6x16x3x3xf32>) {
  ^bb0(%in: f8E5M2, %out: f32):
    %t = arith.extf %in : f8E5M2 to f32
    linalg.yield %t : f32
  } -> tensor<6x16x3x3xf32>
  %g = tensor.empty() : tensor<2x6x5x7xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%g : tensor<2x6x5x7xf32>) -> tensor<2x6x5x7xf32>
  %r = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<1> : vector<2xi64>}
      ins(%padded, %taps : tensor<2x16x7x9xf32>, tensor<6x16x3x3xf32>) outs(%zeros : tensor<2x6x5x7xf32>) -> tensor<2x6x5x7xf32>
  return %r : tensor<2x6x5x7xf32>
}
